"""The model against numbers that were computed elsewhere: spec section 11.4, and an independent reading of
the spec.

With rounding off the numbers are the spec's, checked there against transformers. With cache rounding on, and
for the draft block, they come from tests/model/independent.py, which is also run live on every kind of model.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from finback.config import ModelConfig
from finback.reference.oracle import Oracle
from tests.golden import GOLDEN, prompt, weights
from tests.model.fixtures import CASES, LENGTH
from tests.model.independent import Independent
from tests.model.run import Model, run, worst
from tests.tiny import TINY

SHORT_BLOCKS = replace(GOLDEN, head_dim=128, qk_rope_head_dim=32, index_head_dim=64, cache_rounding=True)
"""Front channels 96 = 64 + 32: the second FP8 block is short, as in the published tiny model."""

Line = tuple[int, int, list[float]]  # position, greatest logit's id, logits 0..4

SPEC: list[Line] = [
    (0, 50, [-0.68456, 0.01627, -0.61163, 0.32512, 0.48709]),
    (3, 57, [-0.77333, 0.91454, -0.36312, 1.02579, 0.0727]),
    (15, 45, [1.87016, 0.50447, -0.95982, -1.0293, 0.30389]),
    (16, 45, [0.80551, -0.59624, -1.00339, 0.00234, 0.63187]),
    (127, 15, [0.99146, -1.36224, -0.22523, 1.04187, -0.19348]),
    (128, 42, [1.2121, 0.29989, 0.31397, 1.63249, -0.84043]),
    (255, 4, [-1.2819, -0.72285, -0.25046, -0.53234, 3.16619]),
    (300, 50, [-0.84098, -1.18478, 0.53248, 1.53851, -1.07779]),
]
ROUNDED: list[Line] = [
    (0, 50, [-0.7339, 0.00503, -0.63106, 0.3554, 0.4044]),
    (15, 45, [1.87992, 0.52901, -0.95199, -1.05859, 0.30505]),
    (16, 45, [0.78262, -0.55508, -1.0484, -0.02185, 0.55943]),
    (127, 15, [0.94262, -1.36946, -0.15018, 1.07553, -0.28843]),
    (128, 42, [1.19807, 0.21661, 0.34082, 1.67749, -0.78924]),
    (300, 57, [-0.9181, -1.54948, 0.53961, 1.23995, -1.44015]),
]
SHORT: list[Line] = [
    (0, 30, [-1.158, 0.72885, -1.48979, 1.829, 0.73108]),
    (15, 42, [1.24474, 1.19069, 0.60855, 1.6765, -0.43161]),
    (127, 57, [-0.14649, 0.74446, 0.22089, 0.39282, -1.92768]),
    (300, 24, [0.9474, -2.04649, -0.25488, 0.78446, -1.63729]),
]
TINY_LINES: list[Line] = [
    (0, 66, [0.46584, 0.11124, -0.29483, -0.57591, 1.85618]),
    (16, 120, [-0.61399, 0.56476, 0.5042, 0.75838, 0.2396]),
    (142, 50, [0.32802, 0.73052, -1.92989, 1.07931, 0.8394]),
]


@pytest.mark.parametrize(
    ("config", "n", "lines", "total", "magnitude", "draft"),
    [
        (GOLDEN, 301, SPEC, 1140.386, 26739.033, (65, [-0.36841, -0.19057, 0.11858, 1.64455, -1.1123])),
        (
            replace(GOLDEN, cache_rounding=True),
            301,
            ROUNDED,
            1210.867,
            26746.023,
            (65, [-0.36088, -0.24562, 0.29694, 1.60174, -1.0836]),
        ),
        (
            SHORT_BLOCKS,
            301,
            SHORT,
            -773.743,
            26427.663,
            (65, [-0.40782, -0.45452, 0.68383, 1.11027, 0.20975]),
        ),
        (
            TINY,
            143,
            TINY_LINES,
            -1192.864,
            40296.139,
            (223, [1.55706, -0.53066, -1.15666, -0.60828, 0.98318]),
        ),
    ],
    ids=["spec", "rounded", "short-blocks", "tiny"],
)
def test_golden_values(
    config: ModelConfig,
    n: int,
    lines: list[Line],
    total: float,
    magnitude: float,
    draft: tuple[int, list[float]],
) -> None:
    model = Model.of(config, Oracle(), weights(config))
    ids = prompt(n, config.vocab_size)
    result = run(model, ids)
    for position, top, first in lines:
        assert result.logits[position].argmax() == top, position
        np.testing.assert_allclose(result.logits[position, :5], first, atol=6e-6)
    assert result.logits.sum() == pytest.approx(total, abs=6e-4)
    assert np.abs(result.logits).sum() == pytest.approx(magnitude, abs=6e-4)
    following = model.draft(result.sequence, 0, ids[1:], result.streams[:-1])[-1]
    assert following.argmax() == draft[0]
    np.testing.assert_allclose(following[:5], draft[1], atol=6e-6)


def test_prompt_and_weights_are_the_specs() -> None:
    assert prompt(8, 97).tolist() == [43, 82, 85, 85, 79, 35, 69, 49]
    np.testing.assert_allclose(
        weights(GOLDEN)["embed.weight"][0, :3], [0.059568, -1.623628, -1.469912], atol=6e-7
    )


@pytest.mark.parametrize("rounding", [False, True], ids=["exact-cache", "rounded-cache"])
@pytest.mark.parametrize("name", CASES)
def test_equals_an_independent_reading(name: str, rounding: bool) -> None:
    config = replace(CASES[name].config, cache_rounding=rounding)
    tensors = weights(config, CASES[name].seed)
    ids = prompt(LENGTH[name], config.vocab_size, CASES[name].seed)
    logits, streams = Independent(config, tensors, rounding).forward(ids)
    result = run(Model.of(config, Oracle(), tensors), ids)
    assert worst(result.logits, logits) < 1e-12
    assert worst(result.streams, streams) < 1e-11


@pytest.mark.parametrize(
    "changes",
    [
        {"norm_topk_prob": False},
        {"n_shared_experts": 0},
        {"swiglu_limit": 0.0},
        {"hc_mult": 2},
        {"num_experts_per_tok": 8},
        {"sliding_window": 1},
        {"index_topk": 1},
        {"o_groups": 4},
        {"hc_sinkhorn_iters": 1},
    ],
    ids=lambda changes: "-".join(f"{k}-{v}" for k, v in changes.items()),
)
def test_numbers_of_the_configuration_are_obeyed(changes: dict[str, float]) -> None:
    config = replace(CASES["tiny"].config, **changes)  # type: ignore[arg-type]
    tensors = weights(config, 5)
    ids = prompt(60, config.vocab_size, 5)
    expected, _ = Independent(config, tensors, False).forward(ids)
    assert worst(run(Model.of(config, Oracle(), tensors), ids).logits, expected) < 1e-12
