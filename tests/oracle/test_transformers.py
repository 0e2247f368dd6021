"""Live comparison with transformers: prefill, decode and ragged chunks of every fixture, and the checkpoint's
names.

What tests/model/test_transformers.py reads from committed files is recomputed here, so that the files cannot
go stale. """

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file

from finback.reference.oracle import Oracle
from tests.golden import prompt, weights
from tests.model.fixtures import CASES, LENGTH, read
from tests.model.independent import Independent
from tests.model.run import Model, run, worst
from tests.model.test_transformers import ragged

pytestmark = pytest.mark.oracle

BOUND = 1e-5
"""float32 steps inside transformers' float64 run give 1e-6 to 3e-6; mistakes give 0.3 and more
(test_mutations.py)."""


@pytest.fixture(scope="module")
def other() -> ModuleType:
    """The other side; imported only when these tests run, for torch is not in every environment."""
    return importlib.import_module("tests.oracle.transformers_v4")


@pytest.mark.parametrize("name", CASES)
def test_prefill_decode_and_chunks(name: str, other: ModuleType) -> None:
    case = CASES[name]
    tensors = weights(case.config, case.seed)
    ids = prompt(LENGTH[name], case.config.vocab_size, case.seed)
    theirs = other.load(case.config, tensors)
    ours = Model.of(case.config, Oracle(), tensors)
    whole = other.prefill(theirs, ids)
    single = [37] + [1] * (len(ids) - 37)
    decoded = other.chunked(theirs, ids, single)
    assert worst(run(ours, ids).logits, whole) < BOUND
    assert worst(run(ours, ids, ragged(len(ids))).logits, whole) < BOUND
    assert worst(run(ours, ids, single).logits, decoded) < BOUND
    assert worst(Independent(case.config, tensors, False).forward(ids)[0], whole) < BOUND
    fixture = read(name)
    assert worst(fixture.logits, whole) < 1e-6
    assert worst(decoded, whole) == pytest.approx(fixture.noise, rel=0.5)


ALIASES = (
    r"embed_tokens\.weight",
    r"lm_head\.weight",
    r"hc_head\.hc_(fn|base|scale)",
    r".*\.attn\.norm\.weight",
)
"""What transformers writes under a name of its own (spec section 6)."""


def test_official_names(tmp_path: Path, other: ModuleType) -> None:
    """transformers reads every official name (load() asserts it), writes most of them back, and the values
    come through unchanged: a file of official names gives logits with difference 0."""
    case = CASES["golden"]
    tensors = weights(case.config, case.seed)
    body = {name: t for name, t in tensors.items() if not name.startswith("mtp.")}
    model = other.load(case.config, tensors)
    model.save_pretrained(tmp_path)
    written = {}
    for file in tmp_path.glob("*.safetensors"):
        written |= {name.removeprefix("model."): t for name, t in load_file(file).items()}
    common = written.keys() & body.keys()
    assert len(common) > 0.95 * len(body)
    for name in common:
        np.testing.assert_array_equal(written[name].astype(body[name].dtype), body[name], err_msg=name)
    strange = [
        name for name in written.keys() - body.keys() if not any(re.fullmatch(a, name) for a in ALIASES)
    ]
    assert not strange
    ids = prompt(60, case.config.vocab_size)
    again = other.load(case.config, tensors)
    assert worst(other.prefill(model, ids), other.prefill(again, ids)) == 0
