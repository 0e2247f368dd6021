"""Every float kernel: the scalar level against the NumPy model, every other level against scalar, as bytes.

Owns the promise that a level never shows in a result. Sizes run over everything around a vector (1 .. 67)
and some multiples; hypothesis chooses the values. Refuses tolerances.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels import model
from tests.kernels.cases import BUILDERS, LEVELS, arguments, as_bytes, kernel_digest, kernels, run

SIZES = st.one_of(st.integers(1, 67), st.sampled_from([128, 144, 192, 256, 448, 512, 515]))
F = np.float32


def test_every_table_function_has_a_builder() -> None:
    assert set(kernels.functions("scalar")) == set(BUILDERS)


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_scalar_is_the_model(name: str) -> None:
    for size in [*range(1, 36), 48, 63, 64, 65, 67, 128, 131]:
        args = arguments(name, size, seed=7)
        assert as_bytes(run("scalar", name, args)) == as_bytes(getattr(model, name)(*args)), f"size {size}"


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("name", sorted(BUILDERS))
@settings(max_examples=60, deadline=None, derandomize=True)
@given(size=SIZES, seed=st.integers(0, 2**32 - 1))
def test_levels_agree(level: str, name: str, size: int, seed: int) -> None:
    args = arguments(name, size, seed)
    assert as_bytes(run(level, name, args)) == as_bytes(run("scalar", name, args))


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_levels_agree_on_zeros(name: str) -> None:
    args = tuple(np.zeros_like(a) if isinstance(a, np.ndarray) else a for a in arguments(name, 37, 0))
    if name == "pool_close":
        args = (np.ones(37, F), args[1])
    results = {as_bytes(run(level, name, args)) for level in LEVELS}
    assert results == {as_bytes(getattr(model, name)(*args))}


def test_digest_is_one_for_all_levels() -> None:
    assert len({kernel_digest(level) for level in LEVELS}) == 1


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_digest_sees_one_flipped_bit(name: str) -> None:
    """A kernel that is wrong in the lowest bit of one value of one result changes the digest."""
    whole = kernel_digest("scalar")

    def damaged(level: str, function: str, args: tuple[object, ...]) -> object:
        result = run(level, function, args)
        if function != name:
            return result
        data = bytearray(as_bytes(result))
        data[0] ^= 1
        return np.frombuffer(bytes(data), np.uint8)

    assert kernel_digest("scalar", damaged) != whole


def test_levels_are_different_code() -> None:
    addresses = [kernels.functions(level) for level in LEVELS]
    for name in BUILDERS:
        assert len({table[name] for table in addresses}) == len(LEVELS), name
        assert all(table[name] != 0 for table in addresses), name


@pytest.mark.parametrize("level", LEVELS)
def test_clamp_inside_the_activation(level: str) -> None:
    """The limit bounds the gate above and the other factor on both sides, before they meet."""
    gate, up = np.meshgrid(np.array([-20, -1, 0, 5, 12, 50], F), np.array([-50, -9, 0, 9, 50], F))
    gate, up = gate.ravel(), up.ravel()
    got = kernels.swiglu(level, gate, up, 10.0, None)
    clipped = np.minimum(gate, 10).astype(np.float64)
    want = clipped / (1 + np.exp(-clipped)) * np.clip(up, -10, 10)
    np.testing.assert_allclose(got, want, rtol=3e-7)
    assert (
        got.tobytes()
        == kernels.swiglu(level, np.minimum(gate, F(10)), np.clip(up, -10, 10), 0.0, None).tobytes()
    )


@pytest.mark.parametrize("level", LEVELS)
def test_heads_and_keys_do_not_share_bits(level: str) -> None:
    """A head's output does not depend on the heads beside it, nor a key's score on the keys beside it."""
    rng = np.random.default_rng(3)
    q, keys, sink = (
        rng.standard_normal((71, 80), F),
        rng.standard_normal((67, 80), F),
        rng.standard_normal(71, F),
    )
    whole = kernels.attend(level, q, 0.1, keys, sink)
    for first, last in ((0, 1), (3, 8), (60, 71), (64, 65)):
        part = kernels.attend(level, q[first:last], 0.1, keys, sink[first:last])
        assert part.tobytes() == whole[first:last].tobytes()
    codes = np.array([model.encode_row(row, 0, True) for row in keys])
    heads, w = np.array([model.encode_row(row, 0, True) for row in q]), rng.standard_normal(71, F)
    scores = kernels.index_scores(level, heads, w, 80, True, codes)
    for n in (1, 15, 16, 17, 40):
        assert kernels.index_scores(level, heads, w, 80, True, codes[:n]).tobytes() == scores[:n].tobytes()
    assert kernels.index_scores(level, heads, w, 80, True, codes[9:10])[0] == scores[9]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("width", [1024, 1000])
def test_more_indexer_heads_than_one_pass_holds(level: str, width: int) -> None:
    rng = np.random.default_rng(4)
    q, keys = ([model.encode_row(x, 0, True) for x in rng.standard_normal((n, width), F)] for n in (19, 5))
    args = (np.array(q), rng.standard_normal(19, F), width, True, np.array(keys))
    assert kernels.index_scores(level, *args).tobytes() == model.index_scores(*args).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_attention_without_keys_is_zero(level: str) -> None:
    out = kernels.attend(level, np.ones((2, 8), F), 1.0, np.zeros((0, 8), F), np.zeros(2, F))
    assert out.tobytes() == np.zeros((2, 8), F).tobytes()


@pytest.mark.parametrize("level", LEVELS)
def test_max_value_reports_values_that_are_not_finite(level: str) -> None:
    for n in (1, 15, 16, 17, 50):
        for at in {0, n // 2, n - 1}:
            for bad in (np.nan, np.inf, -np.inf):
                x = np.full(n, -3, F)
                x[at] = bad
                top, finite = kernels.max_value(level, x)
                assert not finite
                if not np.isnan(bad):
                    assert top == x.max()
    assert kernels.max_value(level, np.array([-0.0, -1], F))[0].hex() == "0x0.0p+0"


def test_wrong_arguments_are_refused() -> None:
    x = np.ones(8, F)
    with pytest.raises(ValueError, match="isa='sve2' is not a level of this build; levels here: scalar"):
        kernels.sum16("sve2", x)
    with pytest.raises(TypeError):
        kernels.sum16("scalar", x.astype(np.float64))
    with pytest.raises(TypeError):
        kernels.sum16("scalar", np.ones(16, F)[::2])
    with pytest.raises(ValueError, match="a and b differ in length"):
        kernels.add("scalar", x, x[:7])
    with pytest.raises(ValueError, match="not a power of two"):
        kernels.hadamard("scalar", np.ones(12, F))
    with pytest.raises(ValueError, match="row is not cache_row_bytes long"):
        kernels.decode_cache_row("scalar", np.zeros(9, np.uint8), 32, 0, True)
