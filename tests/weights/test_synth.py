"""Random models: the same bytes for the same arguments, every format, sensible values, and what opening costs."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from finback.errors import RequestError
from finback.formats.blocks import FORMATS, decode, decode_fp8, decode_mxfp4_pairs
from finback.formats.safetensors import open_folder
from finback.tools.byte_vocabulary import SMALLEST, contents, tokenizer_json
from finback.tools.random_bytes import E2M1_STD, E4M3_STD, RandomBytes
from finback.tools.synth import synth, synth_config
from finback.weights.checkpoint import GgufVocabulary, OpenedCheckpoint, open_checkpoint
from finback.weights.inventory import draft_tensors, model_tensors
from finback.weights.resolve import Resolver
from tests.weights import models


def digest(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(hashlib.sha256(f.read_bytes()).digest() for f in files)).hexdigest()


def check_finite(opened: OpenedCheckpoint) -> None:
    """Every vector and every matrix without a scale plane decodes to finite values."""
    for wanted in (*model_tensors(opened.config), *draft_tensors(opened.config)):
        if wanted.role == "experts":
            continue
        weight = opened.weight(wanted.name)
        if weight.scale is None:
            assert np.isfinite(models.values(opened, weight)).all(), wanted.name


@pytest.mark.parametrize("name", ["model.gguf", "model"])
def test_the_same_seed_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    paths = [tmp_path / str(i) / name for i in range(3)]
    for path, seed in zip(paths, (7, 7, 8), strict=True):
        path.parent.mkdir()
        synth(path, layers=3, seed=seed)
    assert digest(paths[0]) == digest(paths[1]) != digest(paths[2])


def test_bytes_are_fixed() -> None:
    """A change of these numbers is a change of every recorded measurement on synthetic models."""
    random = RandomBytes(0)
    assert random.take("a", 8).tobytes().hex() == FIRST_BYTES
    piece = next(random.matrix("layers.0.attn.wq_a.weight", "Q4_K", 2, 256, 0.1))
    assert hashlib.sha256(piece.tobytes()).hexdigest()[:16] == Q4_K_BYTES


FIRST_BYTES = "01e1a609dd372128"
Q4_K_BYTES = "03adecc12e2946e5"


@pytest.mark.parametrize(
    ("experts", "dense"),
    [
        ("Q8_0", "Q4_0"),
        ("Q4_K", "Q6_K"),
        ("Q6_K", "Q4_K"),
        ("IQ2_XXS", "Q2_K"),
        ("IQ1_M", "IQ4_NL"),
        ("MXFP4", "MXFP4"),
        ("BF16", "F16"),
        ("F32", "F32"),
    ],
)
def test_gguf_formats(experts: str, dense: str, tmp_path: Path) -> None:
    config = synth(tmp_path / "m.gguf", layers=4, experts_format=experts, dense_format=dense)
    opened = open_checkpoint(tmp_path / "m.gguf")
    assert opened.config == config
    assert opened.unused == ()
    assert opened.weight("layers.0.attn.wq_b.weight").format == dense
    assert opened.weight("head.weight").format == dense
    stack = opened.experts("layers.3.ffn.experts", "w2")
    assert stack.format == experts
    assert 0.3 < models.expert_values(opened, stack, 5).std() * stack.shape[1] ** 0.5 < 3
    check_finite(opened)
    tokens = opened.tokenizer
    assert isinstance(tokens, GgufVocabulary)
    assert list(tokens.tokens) == contents(config.vocab_size)


@pytest.mark.parametrize(
    ("experts", "dense"),
    [("MXFP4_PAIRS", "FP8_E4M3"), ("FP8_E4M3", "FP8_E4M3"), ("BF16", "BF16"), ("F32", "F32")],
)
def test_folder_formats(experts: str, dense: str, tmp_path: Path) -> None:
    config = synth(tmp_path / "m", layers=4, experts_format=experts, dense_format=dense)
    opened = open_checkpoint(tmp_path / "m")
    assert opened.config == config
    assert opened.unused == ()
    assert opened.weight("layers.0.attn.wq_b.weight").format == dense
    assert opened.experts("layers.3.ffn.experts", "w1").format == experts
    assert opened.tokenizer == tmp_path / "m" / "tokenizer.json"
    check_finite(opened)


@pytest.mark.parametrize("format", [f.name for f in FORMATS.values() if f.ggml_type is not None and f.activation])
def test_values_have_the_deviation_asked_for(format: str) -> None:
    pieces = list(RandomBytes(3).matrix("x", format, 64, 512, 0.05))
    values = decode(format, np.concatenate(pieces), 64, 512)
    assert np.isfinite(values).all()
    assert 0.03 < values.std() < 0.08
    assert abs(values.mean()) < 0.02


def test_scale_planes_have_the_deviation_asked_for() -> None:
    random = RandomBytes(3)
    codes = next(random.matrix("x", "FP8_E4M3", 256, 256, 0.05)).reshape(256, 256)
    scales = random.scales("s", 4, 0.05, E4M3_STD).reshape(2, 2)
    assert 0.02 < decode_fp8(codes, scales, (128, 128)).std() < 0.08
    packed = next(random.matrix("y", "MXFP4_PAIRS", 64, 512, 0.05)).reshape(64, 256)
    scales = random.scales("t", 64 * 16, 0.05, E2M1_STD).reshape(64, 16)
    assert 0.02 < decode_mxfp4_pairs(packed, scales).std() < 0.08


def test_tables_name_different_experts(tmp_path: Path) -> None:
    for experts in (1, 2, 3, 8, 100):
        path = tmp_path / f"{experts}.gguf"
        config = synth(path, layers=1, experts=experts)
        opened = open_checkpoint(path)
        table = models.values(opened, opened.weight("layers.0.ffn.gate.tid2eid"))
        assert table.min() >= 0
        assert table.max() < experts
        assert all(len(set(row)) == config.num_experts_per_tok for row in table.tolist())


def test_like_layers_share_bytes(tmp_path: Path) -> None:
    synth(tmp_path / "a.gguf", alias=True)
    synth(tmp_path / "b.gguf")
    shared, plain = open_checkpoint(tmp_path / "a.gguf"), open_checkpoint(tmp_path / "b.gguf")
    assert shared.config == plain.config
    assert shared.nbytes < 0.75 * plain.nbytes
    assert (tmp_path / "a.gguf").stat().st_size < 0.75 * (tmp_path / "b.gguf").stat().st_size
    assert shared.weight("layers.0.attn.wq_b.weight").data == shared.weight("layers.1.attn.wq_b.weight").data
    assert shared.weight("layers.0.attn.wq_b.weight").data != shared.weight("layers.2.attn.wq_b.weight").data
    own = "ffn.gate.tid2eid"
    assert shared.weight(f"layers.0.{own}").data != shared.weight(f"layers.1.{own}").data


@pytest.mark.parametrize("name", ["m.gguf", "m"])
def test_progress_ends_at_the_total(name: str, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    synth(tmp_path / name, layers=2, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1] == open_checkpoint(tmp_path / name).nbytes
    assert all(a[0] < b[0] for a, b in itertools.pairwise(calls))


def test_memory_stays_at_a_few_pieces(tmp_path: Path) -> None:
    """A model of 128 MB is written with less than half of it in memory."""
    tracemalloc.start()
    synth(tmp_path / "m.gguf", layers=2, experts=400, experts_format="F16", drafts=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "m.gguf").stat().st_size > 300e6
    assert peak < 80e6


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("m.gguf", {"arch": "v5"}, "arch is 'v5'; known are v4-flash"),
        ("m.gguf", {"layers": 6}, "layers is 6"),
        ("m.gguf", {"layers": 0}, "layers is 0"),
        ("m.gguf", {"vocab": SMALLEST - 1}, f"needs {SMALLEST}"),
        ("m.gguf", {"experts": 0}, "n_routed_experts is 0"),
        ("m.gguf", {"experts_format": "FP8_E4M3"}, "experts_format is 'FP8_E4M3'"),
        ("m.gguf", {"dense_format": "Q5_1"}, "dense_format is 'Q5_1'"),
        ("m", {"dense_format": "Q8_0"}, "dense_format is 'Q8_0'"),
        ("m", {"alias": True}, "alias is True"),
        ("m", {"shards": 0}, "shards is 0"),
        ("m", {"vocab": SMALLEST - 1}, f"needs {SMALLEST}"),
    ],
)
def test_arguments_are_checked_before_anything_is_written(
    name: str, arguments: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=message):
        synth(tmp_path / name, **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_text("mine")
    with pytest.raises(RequestError, match="exists"):
        synth(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").read_text() == "mine"


def test_placeholders_fill_the_vocabulary(tmp_path: Path) -> None:
    for name in ("m.gguf", "m"):
        config = synth(tmp_path / name, layers=1, vocab=1000, drafts=0)
        assert config.vocab_size == 1000
    added = json.loads((tmp_path / "m" / "tokenizer.json").read_text())["added_tokens"]
    assert max(token["id"] for token in added) == 999
    assert len(set(contents(1000))) == 1000


def test_the_vocabulary_is_a_tokenizer_json() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(SMALLEST)))
    text = "Hé, 世界! <think>123\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.token_to_id("<think>") in ids


# ---- real shapes ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 69,187 tensors of V4-Flash in 46 shards, with small widths."""
    folder = tmp_path_factory.mktemp("flash") / "model"
    synth(folder, "v4-flash-small", shards=46)
    return folder


def test_v4_flash_by_name_number_and_dtype(flash: Path) -> None:
    """Spec section 6: what the published folder holds."""
    files = open_folder(flash)
    assert len(files.tensors) == 69187
    assert 40 <= len(files.paths) <= 46
    assert Counter(entry.dtype for entry in files.tensors.values()) == {
        "BF16": 433, "F32": 417, "FP8_E4M3": 375, "E8M0": 34167, "I64": 3, "I8": 33792,
    }  # fmt: skip
    assert open_checkpoint(flash).unused == ()


def test_checking_69187_tensors_costs_little(flash: Path) -> None:
    """Processor time of our checks on top of reading the headers; 0.1 s on a quiet machine."""
    files = open_folder(flash)
    opened = open_checkpoint(flash)
    best = min(_seconds_to_check(opened, files.tensors) for _ in range(3))
    assert best < 0.5


def _seconds_to_check(opened: OpenedCheckpoint, tensors: dict[str, object]) -> float:
    fresh = Resolver(opened.paths, {e.name: e for e in opened.stored()}, opened._resolver.spellings, 256, (128, 128))
    start = time.process_time()
    fresh.require(model_tensors(opened.config))
    fresh.require(draft_tensors(opened.config))
    return time.process_time() - start


def test_real_shapes_are_the_specification_s() -> None:
    """Spec section 1.1, and the counts of experts' bytes of section 1.3."""
    flash, pro = synth_config("v4-flash"), synth_config("v4-pro")
    kinds = Counter(layer.kind for layer in flash.layers)
    assert kinds == {"window": 2, "csa": 21, "hca": 20}
    assert Counter(layer.kind for layer in pro.layers) == {"csa": 30, "hca": 31}
    for config, expert in ((flash, 13_369_344), (pro, 35_094_528)):
        values = 3 * config.hidden_size * config.moe_intermediate_size
        assert values // 2 + values // 32 == expert
    parameters = sum(
        int(np.prod(t.shape)) * (flash.n_routed_experts if t.role == "experts" else 1)
        for t in (*model_tensors(flash), *draft_tensors(flash))
    )
    assert round(parameters / 1e9, 1) == 290.9
