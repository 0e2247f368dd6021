"""Placing values in the arena: nothing that lives at once overlaps, on random lifetimes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finback.ops.plan import ALIGNMENT, Lifetime, place

LIVES = st.builds(
    lambda size, born, length: Lifetime(size, born, born + length),
    st.integers(1, 3000),
    st.integers(0, 30),
    st.integers(0, 12),
)


@given(st.lists(LIVES, max_size=60))
def test_values_that_live_at_once_share_no_byte(values: list[Lifetime]) -> None:
    placing = place(values)
    for i, a in enumerate(values):
        assert placing.offsets[i] % ALIGNMENT == 0
        assert placing.offsets[i] + a.size <= placing.size
        for j in range(i):
            b = values[j]
            together = a.born <= b.dies and b.born <= a.dies
            apart = (
                placing.offsets[i] + a.size <= placing.offsets[j]
                or placing.offsets[j] + b.size <= placing.offsets[i]
            )
            assert apart or not together


@given(st.lists(LIVES, max_size=60))
def test_the_arena_is_not_larger_than_all_values(values: list[Lifetime]) -> None:
    assert place(values).size <= sum(-(-v.size // ALIGNMENT) * ALIGNMENT for v in values)


def test_a_value_takes_the_place_of_one_that_is_dead() -> None:
    placing = place([Lifetime(64, 0, 1), Lifetime(64, 1, 2), Lifetime(64, 2, 3)])
    assert placing.offsets == (0, 64, 0)
    assert placing.size == 128


def test_an_output_never_lies_on_an_input_of_its_operation() -> None:
    assert place([Lifetime(640, 0, 5), Lifetime(640, 5, 9)]).offsets == (0, 640)
