"""Loading: settings in range, budgets kept, processes that fork told so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import finback
from finback import native
from finback.errors import EngineStateError, MemoryBudgetError, ModelFileError, RequestError
from finback.tools.synth import synth
from tests.tiny import write_folder


@pytest.mark.parametrize(
    "bad",
    [
        {"threads": 0},
        {"threads": 1.5},
        {"threads": True},
        {"context": 0},
        {"context": -1},
        {"context": 2**31},
        {"context": 2**40},
        {"context": "8k"},
        {"prefill_chunk": 0},
        {"prefill_chunk": 10**6},
        {"cache_rounding": "yes"},
        {"memory": "lots"},
        {"memory": -5},
        {"memory": 1.5},
        {"memory": ""},
    ],
)
def test_settings_out_of_range_are_refused_by_name(bad: dict[str, object]) -> None:
    (name,) = bad
    with pytest.raises(RequestError, match=name):
        finback.load(**bad)  # type: ignore[arg-type]


def test_an_unknown_level_is_refused_with_those_there_are() -> None:
    with pytest.raises(RequestError, match=r"isa is .avx1024.; levels of this build are scalar"):
        finback.load(isa="avx1024")


@pytest.mark.parametrize("context", [1, 2, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 4096, 65536])
def test_any_context_works(context: int) -> None:
    with finback.load(context=context) as engine:
        n = min(context, 200)
        assert engine.logits(list(range(3, 3 + n)), rows=[-1]).shape == (1, 4096)


def test_memory_grows_with_context() -> None:
    planned = []
    for context in (1, 128, 4096, 65536, 1 << 20):
        with finback.load(context=context) as engine:
            planned.append(engine.memory()["arena"])
    assert planned == sorted(planned)


def test_the_budget_counts_the_weights() -> None:
    with finback.load(context=64) as engine:
        memory = engine.memory()
        assert memory["weights"] >= 17 * 10**6
    with pytest.raises(MemoryBudgetError, match="weights needs") as refused:
        finback.load(memory="4MiB")
    assert refused.value.needed > refused.value.budget == 4 << 20
    assert len(str(refused.value)) < 400
    with pytest.raises(MemoryBudgetError, match="arena needs"):
        finback.load(memory=memory["weights"] + 1000, context=64, weights="resident")
    total = sum(size for name, size in memory.items() if name != "budget")
    with finback.load(context=64, memory=total + (2 << 20)) as engine:
        assert engine.generate([1, 2, 3], finback.Sampling(max_tokens=2, temperature=0)).token_ids


def test_copies_are_taken_where_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    synth(path, "v4-tiny", layers=3, experts=2, vocab=2048, dense_format="IQ2_XXS", seed=1)  # copies are larger
    held = native.buffer_bytes()
    sizes = {}
    for weights in ("mapped", "resident", "auto"):
        with finback.load(path, context=64, weights=weights) as engine:
            sizes[weights] = engine.memory()["weights"]
            copied = native.buffer_bytes() - held - engine.memory()["arena"]
            assert (copied > 0) == (weights != "mapped"), weights
        assert native.buffer_bytes() == held, weights
    assert sizes["auto"] == sizes["resident"] != sizes["mapped"]
    with finback.load(path, context=64, weights="mapped") as engine:
        needed = sum(size for name, size in engine.memory().items() if name != "budget")
    monkeypatch.setattr("finback.engine.load.SHARE", 10)  # copies are tried and do not leave room for the arena
    with finback.load(path, context=64, memory=needed + (1 << 18)) as engine:
        assert engine.memory()["weights"] == sizes["mapped"]
    monkeypatch.setattr("finback.engine.load.SHARE", 0.1)  # the model is small beside its arena
    with finback.load(path, context=64, memory=needed + (2 << 20)) as engine:
        assert engine.memory()["weights"] == sizes["mapped"]
    with pytest.raises(RequestError, match="weights is 'fast'"):
        finback.load(path, weights="fast")


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path / "none", tmp_path):
        with pytest.raises(ModelFileError) as refused:
            finback.load(path)
        assert len(str(refused.value)) < 400


def test_a_model_without_a_tokenizer_gives_logits(tmp_path: Path) -> None:
    synth(tmp_path / "model", "v4-tiny", layers=2, experts=2, vocab=320)
    (tmp_path / "model" / "tokenizer.json").unlink()
    with finback.load(tmp_path / "model", context=64) as engine:
        assert engine.logits([5, 6, 7]).shape == (3, 320)
        answer = engine.generate([5, 6, 7], finback.Sampling(temperature=0, max_tokens=4, ignore_eos=True))
        assert len(answer.token_ids) == 4
        assert answer.text == ""
        with pytest.raises(RequestError, match="no tokenizer"):
            engine.generate("text")
        with pytest.raises(RequestError, match="stop strings need a tokenizer"):
            engine.generate([5], finback.Sampling(stop="x"))


def test_a_forked_child_is_told_to_load_again() -> None:
    with finback.load(context=64, threads=2) as engine:
        engine.logits([1, 2, 3])
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                engine.logits([1, 2, 3])
                said = "nothing"
            except EngineStateError as error:
                said = str(error)
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        assert b"fork" in os.read(read, 1000)
        os.waitpid(child, 0)
        engine.logits([1, 2, 3])


def test_a_forked_child_cannot_load() -> None:
    with finback.load(context=64, threads=2):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                finback.load(context=64, threads=2, weights="resident")
                said = "nothing"
            except EngineStateError as error:
                said = str(error)
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        assert b"fork" in os.read(read, 1000)
        os.waitpid(child, 0)


def test_a_broken_tokenizer_is_an_error_of_text_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth(path, "v4-tiny", layers=2, experts=2, vocab=320)
    merges = gguf_string(b"tokenizer.ggml.pre")
    data = path.read_bytes()
    at = data.index(merges) + len(merges) + 12  # type and length, then the name of the pre-tokenizer
    path.write_bytes(data[:at] + b"x" + data[at + 1 :])
    with finback.load(path, context=64) as engine:
        plain = finback.Sampling(temperature=0, max_tokens=3)
        done = engine.generate([5, 6, 7], plain)
        assert (len(done.token_ids), done.text) == (3, "")
        for _ in range(2):
            with pytest.raises(ModelFileError, match="xeepseek-v3"):
                engine.generate("Hello", plain)
        with pytest.raises(ModelFileError, match="xeepseek-v3"):
            engine.generate([5, 6, 7], finback.Sampling(temperature=0, max_tokens=3, stop=["a"]))


def gguf_string(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def test_a_mapped_file_that_shrinks_is_an_error_not_a_signal(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    synth(path, "v4-tiny", layers=2, experts=2, vocab=320)
    with finback.load(path, context=64) as engine:
        engine.logits([1, 2, 3])
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(ModelFileError, match=r"model\.gguf"):
            engine.logits([1, 2, 3])


def test_templates_of_a_model_are_never_run(tmp_path: Path) -> None:
    """Case I11: the prompt format is built in; what a file says of one is not looked at."""
    mark = tmp_path / "it-ran"
    folder = write_folder(tmp_path / "model")
    attack = f"cycler.__init__.__globals__.os.system('touch {mark}')"
    payload = "{% for i in range(10**9) %}{{ " + attack + " }}{% endfor %}"
    described = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**described, "chat_template": payload}))
    (folder / "chat_template.jinja").write_text(payload)
    with finback.load(folder, context=128) as engine:
        ids = engine.encode([{"role": "user", "content": "Hi"}])
        with finback.load(write_folder(tmp_path / "plain"), context=128) as plain:
            assert ids == plain.encode([{"role": "user", "content": "Hi"}])
    assert not mark.exists()
