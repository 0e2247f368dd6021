"""The same values resolve to the same tensors whatever the container calls them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finback.config import ModelConfig
from finback.errors import ModelFileError, UnsupportedModelError
from finback.formats.blocks import decode_fp8, decode_mxfp4_pairs, encode_fp8, encode_mxfp4_pairs
from finback.formats.writer import SafetensorsFolderWriter, SafetensorsWriter
from finback.weights.checkpoint import GgufVocabulary, OpenedCheckpoint, open_checkpoint
from finback.weights.inventory import draft_tensors, model_tensors
from tests.golden import shapes
from tests.tiny import TINY, official_config, weights, write_folder, write_safetensors
from tests.weights import models

WITHOUT_DRAFT = replace(TINY, mtp_layers=())
WEIGHTS = weights(TINY)


def prefixed(folder: Path, c: ModelConfig) -> Path:
    """Some mirrors prefix every name."""
    models.write_config(folder, official_config(c))
    write_safetensors(folder / "model.safetensors", {f"model.{n}": t for n, t in weights(c).items()})
    return folder


def gguf(folder: Path, c: ModelConfig) -> Path:
    return models.write_gguf(folder.with_suffix(".gguf"), c)


def gguf_nextn(folder: Path, c: ModelConfig) -> Path:
    return models.write_gguf(folder.with_suffix(".gguf"), c, nextn=True)


CONTAINERS: dict[str, tuple[Callable[[Path, ModelConfig], Path], bool]] = {
    "published": (write_folder, True),
    "prefixed": (prefixed, True),
    "saved by transformers": (models.write_saved, False),
    "modules of transformers": (models.write_modules, False),
    "GGUF, ds4": (gguf, True),
    "GGUF, llama.cpp": (gguf_nextn, True),
}


def check_values(opened: OpenedCheckpoint) -> None:
    """Every tensor of the inventory has the values it was written with."""
    for wanted in (*model_tensors(opened.config), *draft_tensors(opened.config)):
        if wanted.role == "experts":
            prefix, matrix = wanted.name.rsplit(".", 1)
            stack = opened.experts(prefix, matrix)
            assert stack.shape == wanted.shape
            for expert in range(opened.config.n_routed_experts):
                got = models.expert_values(opened, stack, expert)
                np.testing.assert_array_equal(got, WEIGHTS[f"{prefix}.{expert}.{matrix}.weight"], wanted.name)
        else:
            weight = opened.weight(wanted.name)
            assert weight.shape == wanted.shape
            np.testing.assert_array_equal(models.values(opened, weight), WEIGHTS[wanted.name], wanted.name)


@pytest.mark.parametrize("name", CONTAINERS)
def test_values_are_the_same_in_every_container(name: str, tmp_path: Path) -> None:
    write, draft = CONTAINERS[name]
    opened = open_checkpoint(write(tmp_path / "model", TINY))
    expected = TINY if draft else WITHOUT_DRAFT
    # GGUF without a vocabulary has no special tokens.
    if opened.kind == "gguf":
        expected = replace(expected, bos_token_id=None, eos_token_ids=(), pad_token_id=None)
    assert opened.config == expected
    assert opened.unused == ()
    assert opened.notes == ()
    assert opened.nbytes == sum(
        t.nbytes // (2 if t.dtype == np.int64 and opened.kind == "gguf" else 1)
        for n, t in WEIGHTS.items() if draft or not n.startswith("mtp.")
    )  # fmt: skip
    check_values(opened)


def test_the_inventory_is_the_specification_s() -> None:
    found: dict[str, tuple[int, ...]] = {}
    for wanted in (*model_tensors(TINY), *draft_tensors(TINY)):
        prefix, _, matrix = wanted.name.rpartition(".")
        names = (
            [f"{prefix}.{e}.{matrix}.weight" for e in range(8)] if wanted.role == "experts" else [wanted.name]
        )
        found |= dict.fromkeys(names, wanted.shape)
    tables = {n: t.shape for n, t in WEIGHTS.items() if n.endswith("tid2eid")}
    assert found == shapes(TINY) | tables


def test_a_separate_draft_file_joins_the_model(tmp_path: Path) -> None:
    def main(keys: object, tensors: dict[str, models.Array]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.")]:
            del tensors[name]

    def draft(keys: object, tensors: dict[str, models.Array]) -> None:
        for name in [name for name in tensors if not name.startswith("mtp.")]:
            del tensors[name]

    path = models.write_gguf(tmp_path / "main.gguf", TINY, change=main)
    extra = models.write_gguf(tmp_path / "mtp.gguf", TINY, change=draft)
    assert open_checkpoint(path).config.mtp_layers == ()
    opened = open_checkpoint(path, draft=extra)
    assert opened.config.mtp_layers == TINY.mtp_layers
    assert [p.name for p in opened.paths] == ["main.gguf", "mtp.gguf"]
    check_values(opened)
    with pytest.raises(ModelFileError, match=r"main\.gguf: holds no draft block"):
        open_checkpoint(path, draft=path)


def test_any_file_of_a_folder_stands_for_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TINY)
    assert open_checkpoint(folder / "model.safetensors").config == TINY
    (folder / "model.safetensors").unlink()
    with SafetensorsFolderWriter(folder, shard_bytes=1 << 20) as writer:
        for name, tensor in WEIGHTS.items():
            writer.declare(name, "I64" if tensor.dtype == np.int64 else "F32", tensor.shape)
        for name, tensor in WEIGHTS.items():
            writer.write(name, tensor)
    shards = sorted(folder.glob("*-of-*.safetensors"))
    assert len(shards) > 1
    for path in (folder, shards[-1]):
        opened = open_checkpoint(path)
        assert len(opened.paths) == len(shards)
        check_values(opened)


def test_a_gguf_file_needs_no_suffix(tmp_path: Path) -> None:
    path = models.write_gguf(tmp_path / "model.gguf", TINY).rename(tmp_path / "sha256-0123")
    assert open_checkpoint(path).kind == "gguf"


@pytest.mark.parametrize("spelling", [".scale", ".weight_scale_inv"])
@pytest.mark.parametrize("f32", [False, True])
def test_fp8_and_mxfp4_keep_their_scales(tmp_path: Path, spelling: str, f32: bool) -> None:
    """FP8 in blocks of 32 x 32 (so that blocks are cut off at edges), with both dtypes of scales; packed experts."""
    folder, block = write_folder(tmp_path / "model", TINY), (32, 32)
    quantization = {"quant_method": "fp8", "weight_block_size": list(block)}
    models.write_config(folder, official_config(TINY) | {"quantization_config": quantization})
    dense = "layers.2.attn.wq_a.weight"
    stored: dict[str, tuple[str, models.Array]] = {}
    for name, tensor in WEIGHTS.items():
        scale = name.removesuffix(".weight") + spelling
        if name == dense:
            codes, scales = encode_fp8(tensor.astype(np.float32), block)
            plane = np.exp2(scales.astype(np.float32) - 127) if f32 else scales
            stored |= {name: ("FP8_E4M3", codes), scale: ("F32" if f32 else "E8M0", plane)}
        elif ".experts." in name and name.startswith("layers.1."):
            packed, scales = encode_mxfp4_pairs(tensor.astype(np.float32))
            stored |= {name: ("I8", packed), scale: ("E8M0", scales)}
        else:
            stored[name] = ("I64" if tensor.dtype == np.int64 else "F32", tensor)
    with SafetensorsWriter(folder / "model.safetensors") as writer:
        for name, (format, tensor) in stored.items():
            writer.declare(name, format, tensor.shape)
        for name, (_, tensor) in stored.items():
            writer.write(name, tensor)
    opened = open_checkpoint(folder)
    assert opened.unused == ()
    weight = opened.weight(dense)
    assert (weight.format, weight.scale_block) == ("FP8_E4M3", block)
    assert weight.scale_kind == ("F32" if f32 else "E8M0")
    assert weight.scale is not None
    codes = models.plane_bytes(opened, weight.data).reshape(weight.shape)
    scales = models.plane_bytes(opened, weight.scale).view(np.float32 if f32 else np.uint8)
    rows = -(-weight.shape[0] // block[0])
    got = decode_fp8(codes, scales.reshape(rows, -1), block)
    expected = decode_fp8(*encode_fp8(WEIGHTS[dense].astype(np.float32), block), block)
    np.testing.assert_array_equal(got, expected)
    stack = opened.experts("layers.1.ffn.experts", "w2")
    assert (stack.format, stack.scale_kind, stack.scale_block) == ("MXFP4_PAIRS", "E8M0", (1, 32))
    assert stack.scale_files is not None
    assert stack.scale_offsets is not None
    for expert in range(8):
        plane = models.Plane(int(stack.files[expert]), int(stack.offsets[expert]), stack.nbytes)
        scale_plane = models.Plane(
            int(stack.scale_files[expert]), int(stack.scale_offsets[expert]), stack.scale_nbytes
        )
        packed = models.plane_bytes(opened, plane).reshape(stack.shape[0], -1)
        scales = models.plane_bytes(opened, scale_plane).reshape(stack.shape[0], -1)
        tensor = WEIGHTS[f"layers.1.ffn.experts.{expert}.w2.weight"].astype(np.float32)
        np.testing.assert_array_equal(
            decode_mxfp4_pairs(packed, scales), decode_mxfp4_pairs(*encode_mxfp4_pairs(tensor))
        )


def test_fused_fp8_experts_are_offsets_too(tmp_path: Path) -> None:
    folder = models.write_modules(tmp_path / "model", TINY)
    models.write_config(
        folder,
        models.transformers_config(TINY)
        | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}},
    )
    base = open_checkpoint(folder)
    name = "model.layers.3.mlp.experts.gate_up_proj"
    stored: dict[str, tuple[str, models.Array]] = {}
    for entry in base.stored():
        raw = models.plane_bytes(base, models.Plane(entry.file, entry.offset, entry.nbytes))
        stored[entry.name] = (
            entry.dtype,
            raw.view(np.int64 if entry.dtype == "I64" else np.float32).reshape(entry.shape),
        )
    fused = stored[name][1]
    pairs = [encode_fp8(matrix, (32, 32)) for matrix in fused]
    stored[name] = ("FP8_E4M3", np.stack([codes for codes, _ in pairs]))
    stored[f"{name}_scale_inv"] = ("E8M0", np.stack([scales for _, scales in pairs]))
    with SafetensorsWriter(folder / "model.safetensors") as writer:
        for key, (format, tensor) in stored.items():
            writer.declare(key, format, tensor.shape)
        for key, (_, tensor) in stored.items():
            writer.write(key, tensor)
    opened = open_checkpoint(folder)
    stack = opened.experts("layers.3.ffn.experts", "w3")
    assert stack.scale_offsets is not None
    for expert in range(8):
        codes = models.plane_bytes(opened, models.Plane(0, int(stack.offsets[expert]), stack.nbytes))
        scales = models.plane_bytes(
            opened, models.Plane(0, int(stack.scale_offsets[expert]), stack.scale_nbytes)
        )
        got = decode_fp8(codes.reshape(64, 64), scales.reshape(2, 2), (32, 32))
        expected = decode_fp8(
            *encode_fp8(WEIGHTS[f"layers.3.ffn.experts.{expert}.w3.weight"], (32, 32)), (32, 32)
        )
        np.testing.assert_array_equal(got, expected)


def test_the_embedded_model_opens() -> None:
    opened = open_checkpoint(None)
    assert opened.kind == "embedded"
    assert (opened.unused, opened.notes) == ((), ())
    assert (opened.generation.temperature, opened.generation.top_p) == (0.7, 0.95)
    assert len(opened.config.layers) == 5
    assert len(opened.config.mtp_layers) == 1
    assert isinstance(opened.tokenizer, GgufVocabulary)
    assert (
        len(opened.tokenizer.tokens) == len(opened.tokenizer.token_types) == opened.config.vocab_size == 4096
    )
    assert opened.tokenizer.tokens[opened.tokenizer.eos_id] == "<｜end▁of▁sentence｜>"
    assert opened.weight("layers.0.ffn.gate.weight").format == "F32"
    assert opened.experts("layers.0.ffn.experts", "w1").format == "Q8_0"
    assert opened.nbytes < 20e6


def test_identity_changes_with_the_files(tmp_path: Path) -> None:
    path = models.write_gguf(tmp_path / "model.gguf", TINY)
    opened = open_checkpoint(path)
    first = opened.identity
    assert first == open_checkpoint(path).identity
    os.utime(path, ns=(1, 1))
    assert opened.identity != first
    path.unlink()
    with pytest.raises(ModelFileError, match=r"model\.gguf: cannot be looked at any more"):
        _ = opened.identity


# ---- what is refused, and what is noted ---------------------------------------------------------------------------


def folder_with(
    tmp_path: Path, change: Callable[[dict[str, models.Array]], None], c: ModelConfig = TINY
) -> Path:
    tensors = dict(weights(c))
    change(tensors)
    folder = tmp_path / "model"
    models.write_config(folder, official_config(c))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def without(name: str) -> Callable[[dict[str, models.Array]], None]:
    def change(tensors: dict[str, models.Array]) -> None:
        del tensors[name]

    return change


@pytest.mark.parametrize("name", [w.name for w in model_tensors(TINY) if w.role != "experts"][::5])
def test_every_tensor_is_needed(name: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, without(name))
    with pytest.raises(ModelFileError, match=f"tensor '{name}' is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", [f"layers.4.ffn.experts.{e}.w2.weight" for e in (0, 3, 7)])
def test_every_expert_is_needed(name: str, tmp_path: Path) -> None:
    folder = folder_with(tmp_path, without(name))
    with pytest.raises(ModelFileError, match=f"tensor '{name}' is missing"):
        open_checkpoint(folder)


def test_a_router_without_its_bias_is_refused(tmp_path: Path) -> None:
    def change(keys: object, tensors: dict[str, models.Array]) -> None:
        del tensors["blk.3.exp_probs_b.bias"]

    path = models.write_gguf(tmp_path / "model.gguf", TINY, change=change)
    with pytest.raises(ModelFileError, match=r"tensor 'blk\.3\.exp_probs_b\.bias' is missing"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    "name", ["embed.weight", "layers.2.attn.compressor.ape", "layers.5.ffn.experts.3.w1.weight", "norm.weight",
             "layers.0.ffn.gate.tid2eid", "mtp.0.e_proj.weight"],
)  # fmt: skip
def test_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    def change(tensors: dict[str, models.Array]) -> None:
        tensors[name] = tensors[name][..., :-1].copy()

    with pytest.raises(ModelFileError, match=rf"tensor '{name}' .*\[.*\]"):
        open_checkpoint(folder_with(tmp_path, change))


@pytest.mark.parametrize(
    ("name", "like", "reason"),
    [
        ("layers.0.attn.compressor.ape", "layers.2.attn.compressor.ape", "compression ratio is 0"),
        ("layers.3.attn.indexer.wq_b.weight", "layers.2.attn.indexer.wq_b.weight", "without an indexer"),
        ("layers.3.ffn.gate.tid2eid", "layers.0.ffn.gate.tid2eid", "hashed"),
    ],
)
def test_tensors_that_contradict_the_configuration_are_refused(
    name: str, like: str, reason: str, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, lambda tensors: tensors.update({name: tensors[like]}))
    with pytest.raises(ModelFileError, match=f"tensor '{name}' contradicts layer .*{reason}"):
        open_checkpoint(folder)


def test_dspark_stages_are_noted_and_not_used(tmp_path: Path) -> None:
    def change(tensors: dict[str, models.Array]) -> None:
        for name in ("mtp.0.e_proj.weight", "mtp.0.h_proj.weight"):
            del tensors[name]
        tensors["mtp.0.main_proj.weight"] = np.zeros((4, 4), np.float32)
        tensors["mtp.2.markov_head.markov_w1.weight"] = np.zeros((4, 4), np.float32)

    opened = open_checkpoint(folder_with(tmp_path, change))
    assert opened.config.mtp_layers == ()
    assert opened.dialect == "v4-0731"
    assert len(opened.notes) == 1
    assert "DSpark" in opened.notes[0]
    assert {n for n in opened.unused if not n.startswith("mtp.")} == set()
    assert "mtp.0.main_proj.weight" in opened.unused


def test_an_incomplete_draft_block_is_noted(tmp_path: Path) -> None:
    opened = open_checkpoint(folder_with(tmp_path, without("mtp.0.hc_head_fn")))
    assert opened.config.mtp_layers == ()
    assert opened.notes == ("the draft block lacks tensor 'mtp.0.hc_head_fn'; drafting is off",)
    assert len(opened.unused) == len([n for n in WEIGHTS if n.startswith("mtp.")]) - 1


def test_a_picture_encoder_is_noted(tmp_path: Path) -> None:
    def change(tensors: dict[str, models.Array]) -> None:
        tensors["vision.norm.weight"] = np.zeros(4, np.float32)
        tensors["layers.4.ffn.gate.bias_vl"] = np.zeros(8, np.float32)

    opened = open_checkpoint(folder_with(tmp_path, change))
    assert opened.notes == ("the picture encoder is not used: finback reads text only",)
    assert set(opened.unused) == {"vision.norm.weight", "layers.4.ffn.gate.bias_vl"}


def test_formats_without_a_kernel_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", TINY)
    with SafetensorsWriter(folder / "model.safetensors") as writer:
        for name, tensor in WEIGHTS.items():
            writer.declare(
                name,
                "F64" if name == "head.weight" else "I64" if tensor.dtype == np.int64 else "F32",
                tensor.shape,
            )
        for name, tensor in WEIGHTS.items():
            writer.write(name, tensor.astype(np.float64) if name == "head.weight" else tensor)
    with pytest.raises(UnsupportedModelError, match=r"tensor 'head\.weight' is stored as F64; finback runs"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.mkdir(), "holds no model"),
        (lambda p: p.write_bytes(b"hello world"), "is no model file"),
        (lambda p: p.write_bytes(b""), "is no model file"),
        (lambda p: (write_folder(p), (p / "config.json").unlink()), r"has no config\.json"),
        (lambda p: (write_folder(p), (p / "x.gguf").touch()), "holds both"),
        (lambda p: os.mkfifo(p), "is not a regular file"),
    ],
)
def test_what_is_no_model_is_refused_in_a_sentence(
    make: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "thing"
    make(path)
    with pytest.raises(ModelFileError, match=message) as caught:
        open_checkpoint(path)
    assert "thing" in str(caught.value)
    assert len(str(caught.value)) < 400
