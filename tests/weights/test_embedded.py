"""The model finback carries is what `examples/tiny-model/export.py` writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from finback.engine.load import open_tokenizer
from finback.text.tokenizer import Tokenizer
from finback.tools.synth import synth
from finback.weights.checkpoint import open_checkpoint
from finback.weights.inventory import draft_tensors, model_tensors
from tests.weights.models import expert_values, values

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tiny-model"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("export", EXAMPLE / "export.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_export_keeps_configuration_and_values(script: ModuleType, tmp_path: Path) -> None:
    synth(tmp_path / "model", dense_format="BF16", experts_format="BF16")
    outs = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for out in outs:
        script.export(tmp_path / "model", out)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    source, made = open_checkpoint(tmp_path / "model"), open_checkpoint(outs[0])
    assert made.config == source.config
    assert made.generation == source.generation
    assert made.unused == ()
    for wanted in (*model_tensors(made.config), *draft_tensors(made.config)):
        if wanted.role == "experts":
            prefix, matrix = wanted.name.rsplit(".", 1)
            stacks = source.experts(prefix, matrix), made.experts(prefix, matrix)
            given, got = expert_values(source, stacks[0], 5), expert_values(made, stacks[1], 5)
        else:
            given, got = (values(c, c.weight(wanted.name)) for c in (source, made))
        exact = wanted.role not in ("matrix", "experts")
        np.testing.assert_allclose(got, given, rtol=0, atol=0 if exact else np.abs(given).max() / 200)


def test_the_embedded_model_is_the_example_s() -> None:
    """Configuration, sampling defaults and tokenizer agree with the files beside the training code."""
    opened = open_checkpoint(None)
    carried = open_tokenizer(opened)
    assert carried is not None
    example = Tokenizer.from_file(EXAMPLE / "tokenizer.json")
    assert carried.fingerprint == example.fingerprint
    text = "Once upon a time, 1234 owls said: \"Hé!\"\n\n日本語"
    assert carried.encode(text) == example.encode(text)
    assert carried.decode(carried.encode(text)) == text


def test_the_embedded_weights_are_sound() -> None:
    """Finite, and of the size trained weights have: no scale was lost on the way."""
    opened = open_checkpoint(None)
    for wanted in (*model_tensors(opened.config), *draft_tensors(opened.config)):
        if wanted.role in ("experts", "table"):
            continue
        found = values(opened, opened.weight(wanted.name))
        assert np.isfinite(found).all(), wanted.name
        assert 0 < np.abs(found).max() < 100, wanted.name
