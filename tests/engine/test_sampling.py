"""What is done to logits before a draw, against a plain model of docs/exactness.md section 14; log-probabilities
against float64; the loop detector; and parameters that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finback import native
from finback.config import GenerationDefaults
from finback.engine.choice import Choice
from finback.engine.penalties import MASKED
from finback.engine.repetition import LEAST_COVER, LONGEST_PIECE, RepetitionWatch
from finback.engine.sampler import LEAST_LOGPROB, Drawer, likeliest
from finback.engine.sampling import Sampling, resolve
from finback.engine.writer import Writer
from finback.errors import NumericError, RequestError

ISA = native.select_level(None)
V = 40
F32 = np.float32
GREATEST = float(np.finfo(F32).max)


def choice(sampling: Sampling, prompt: list[int], vocab: int = V, index: int = 0) -> Choice:
    return Choice(resolve(sampling, GenerationDefaults()), index, prompt, frozenset({1}), vocab)


def clipped(z: Any) -> Any:
    return F32(min(max(float(z), -GREATEST), GREATEST))


def adjusted(logits: np.ndarray, s: Sampling, prompt: list[int], answer: list[int], ends: set[int]) -> np.ndarray:
    """Section 14, token by token."""
    out = logits.copy()
    with np.errstate(over="ignore"):
        for i in range(len(out)):
            z = out[i]
            if i in s.logit_bias:
                z = clipped(z + F32(s.logit_bias[i]))
            if s.repetition_penalty is not None and s.repetition_penalty != 1 and (i in prompt or i in answer):
                r = F32(s.repetition_penalty)
                z = clipped(z / r if z > 0 else z * r)
            if i in answer and (s.frequency_penalty or s.presence_penalty):
                z = clipped(z - F32(s.frequency_penalty) * F32(answer.count(i)))
                z = clipped(z - F32(s.presence_penalty))
            if i in ends and len(answer) < s.min_tokens:
                z = F32(MASKED)
            out[i] = z
    return out


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e37, 3e38]),
    options=st.fixed_dictionaries(
        {},
        optional={
            "logit_bias": st.dictionaries(st.integers(0, V + 3), st.floats(-100, 100), max_size=5),
            "repetition_penalty": st.floats(0.01, 100),
            "presence_penalty": st.floats(-2, 2),
            "frequency_penalty": st.floats(-2, 2),
            "min_tokens": st.integers(0, 6),
            "temperature": st.sampled_from([0.0, 0.7, 1.0]),
            "top_k": st.integers(0, 5),
            "top_p": st.sampled_from([0.0, 0.3, 1.0]),
            "ignore_eos": st.booleans(),
            "stop_token_ids": st.lists(st.integers(0, V - 1), max_size=2),
        },
    ),
)
def test_rows_are_changed_as_the_page_says(seed: int, scale: float, options: dict[str, Any]) -> None:
    dice = np.random.default_rng(seed)
    sampling = Sampling(seed=seed, **options)
    prompt = [int(t) for t in dice.integers(0, V, 12)]
    made, drawer, plain = choice(sampling, prompt), Drawer(ISA, V), Drawer(ISA, V)
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (1,))}
    answer: list[int] = []
    for position in range(12, 22):
        logits = (dice.uniform(-1, 1, V) * scale).astype(F32)
        expected = adjusted(logits, sampling, prompt, answer, ends)
        drawn = made.draw(drawer, logits, position)
        changed = any(options.get(k) for k in ("logit_bias", "presence_penalty", "frequency_penalty", "min_tokens"))
        if changed or options.get("repetition_penalty", 1.0) != 1.0:
            assert logits.tobytes() == expected.tobytes()
        resolved = resolve(sampling, GenerationDefaults())
        assert drawn.token == plain.draw(expected, resolved, position)
        if drawn.finish == "stop":
            assert drawn.token in ends
            assert not drawn.kept
            assert len(answer) >= sampling.min_tokens
            return
        answer.append(drawn.token)
        assert drawn.finish is None


def test_a_broken_row_is_found_whatever_is_done_to_it() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        for options in ({}, {"logit_bias": {5: 1.0}}, {"min_tokens": 3}, {"logprobs": 2, "presence_penalty": 1.0}):
            logits = np.zeros(V, F32)
            logits[5] = bad
            with pytest.raises(NumericError, match="position 6 are not finite"):
                choice(Sampling(temperature=0, **options), [3]).draw(Drawer(ISA, V), logits, 7)  # type: ignore[arg-type]


def test_min_tokens_holds_off_every_end_but_the_limit() -> None:
    made, drawer = choice(Sampling(temperature=0, min_tokens=3, stop_token_ids=[7], max_tokens=5), [3]), Drawer(ISA, V)
    said = []
    for position in range(1, 6):
        logits = np.zeros(V, F32)
        logits[[1, 7]] = 9, 8
        drawn = made.draw(drawer, logits, position)
        said.append((drawn.token, drawn.finish))
    assert said[:3] == [(0, None)] * 3
    assert said[3] == (1, "stop")


def test_a_vocabulary_of_ends_only_still_draws() -> None:
    made = choice(Sampling(temperature=0, min_tokens=2, stop_token_ids=[0]), [0], vocab=2)
    assert made.draw(Drawer(ISA, 2), np.zeros(2, F32), 1).token == 0


def test_draws_do_not_depend_on_what_was_drawn_elsewhere() -> None:
    """The same answer among others, and alone: only its own history counts."""
    dice = np.random.default_rng(0)
    rows = dice.normal(0, 3, (3, 20, V)).astype(F32)
    options = Sampling(seed=4, repetition_penalty=1.3, frequency_penalty=0.4, temperature=0.9)

    def alone(i: int) -> list[int]:
        made, drawer = choice(options, [i], index=i), Drawer(ISA, V)
        return [made.draw(drawer, rows[i, t].copy(), t + 1).token for t in range(20)]

    drawer, made = Drawer(ISA, V), [choice(options, [i], index=i) for i in range(3)]
    together = [[c.draw(drawer, rows[i, t].copy(), t + 1).token for i, c in enumerate(made)] for t in range(20)]
    assert [list(column) for column in zip(*together, strict=True)] == [alone(i) for i in range(3)]


@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0, 1e38])
def test_logprobs_are_those_of_the_model(scale: float) -> None:
    dice = np.random.default_rng(2)
    logits = (dice.normal(0, 1, 500) * scale).astype(F32)
    logits[7] = logits[3]
    found = Drawer(ISA, 500).logprob(logits, 3, 20)
    z = logits.astype(np.float64)
    exact = z - z.max() - math.log(np.exp(z - z.max()).sum())
    order = sorted(range(500), key=lambda i: (-z[i], i))
    assert [i for i, _ in found.top] == order[:20]
    assert found.rank == order.index(3) + 1
    for token, value in [(3, found.logprob), *found.top]:
        # The sum adds 500 exponentials of up to 0.9 ulp of f32; the result is rounded to f32 once.
        assert value == pytest.approx(max(exact[token], LEAST_LOGPROB), rel=2e-7, abs=2e-7)
        assert math.isfinite(value)


def test_the_likeliest_are_in_order_with_equal_ones_by_id() -> None:
    dice = np.random.default_rng(3)
    for n in (1, 2, 7, 20):
        logits = dice.integers(-3, 3, 300).astype(F32)
        assert likeliest(logits, n) == sorted(range(300), key=lambda i: (-logits[i], i))[:n]
    assert likeliest(np.zeros(5, F32), 0) == []
    top = Drawer(ISA, 3).logprob(np.zeros(3, F32), 1, 20).top
    assert top == tuple((i, pytest.approx(-math.log(3))) for i in range(3))


# ---- the loop detector


def loops(tokens: list[int], repeats: int) -> int | None:
    watch = RepetitionWatch(repeats)
    return next((i for i, token in enumerate(tokens) if watch.add(token)), None)


def slow(tokens: list[int], repeats: int) -> int | None:
    for end in range(1, len(tokens) + 1):
        for period in range(1, LONGEST_PIECE + 1):
            run = 0
            while run + period < end and tokens[end - 1 - run] == tokens[end - 1 - run - period]:
                run += 1
            if run >= (repeats - 1) * period and run + period >= LEAST_COVER:
                return end - 1
    return None


@pytest.mark.parametrize("period", [1, 2, 3, 17, 64, 100, 255, 256])
@pytest.mark.parametrize("repeats", [2, 3, 8])
def test_a_loop_is_found_when_it_is_one_and_not_before(period: int, repeats: int) -> None:
    before = list(range(1000, 1300))
    piece = list(range(period))
    needed = max(repeats * period, LEAST_COVER)
    tokens = before + (piece * (needed // period + 2))
    assert loops(tokens, repeats) == len(before) + needed - 1
    assert loops(tokens[: len(before) + needed - 1], repeats) is None
    broken = tokens.copy()
    broken[len(before) + needed - 2] = 9999
    found = loops(broken, repeats)
    assert found is None or found > len(before) + needed - 1


def test_a_longer_piece_than_the_longest_is_no_loop() -> None:
    assert loops(list(range(LONGEST_PIECE + 1)) * 5, 2) is None


def test_against_the_definition() -> None:
    dice = np.random.default_rng(5)
    for _ in range(15):
        tokens = [int(t) for t in dice.integers(0, 2, 20)]
        for _ in range(4):
            piece = tokens[-int(dice.integers(1, 9)) :]
            tokens += piece * int(dice.integers(1, 12))
        assert loops(tokens, 4) == slow(tokens, 4)


def test_rules_and_tables_are_no_loops() -> None:
    assert loops([5] * (LEAST_COVER - 1), 2) is None
    assert loops([1, 2] * 31, 3) is None


# ---- text and parameters


class Letters:
    """A tokenizer whose tokens are letters."""

    def id_to_bytes(self, token: int) -> bytes:
        return bytes([token])


def test_a_stop_string_before_min_tokens_is_not_seen() -> None:
    for minimum, expected in ((0, "ab"), (4, "ab"), (5, "abXYc"), (6, "abXYcd")):
        writer = Writer(Letters(), ("XY",), minimum)  # type: ignore[arg-type]
        text = ""
        for letter in b"abXYcdXYef":
            text += writer.write(letter)
            if writer.stopped:
                break
        assert (text + writer.finish()).startswith(expected)
        assert writer.stopped
        assert "XY" not in text.replace("abXY", "", 1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n is 0; it must be a whole number from 1 to 64"),
        ({"n": 65}, "n is 65"),
        ({"n": None}, "n is None"),
        ({"logprobs": 21}, "logprobs is 21; it must be a whole number from 0 to 20"),
        ({"logprobs": True}, "logprobs is True"),
        ({"prompt_logprobs": -1}, "prompt_logprobs is -1"),
        ({"logit_bias": [1]}, r"logit_bias is \[1\]; give an object"),
        ({"logit_bias": {"a": 1}}, "logit_bias has the key 'a'; keys are token ids"),
        ({"logit_bias": {-1: 1}}, "logit_bias has the key -1"),
        ({"logit_bias": {5: math.nan}}, r"logit_bias\[5\] is nan"),
        ({"logit_bias": {5: 101}}, r"logit_bias\[5\] is 101"),
        ({"logit_bias": {5: None}}, r"logit_bias\[5\] is None"),
        ({"logit_bias": dict.fromkeys(range(5000), 1)}, "logit_bias names 5000 tokens; give at most 4096"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1"),
        ({"frequency_penalty": math.inf}, "frequency_penalty is inf"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, but max_tokens is 4"),
        ({"min_tokens": -1}, "min_tokens is -1"),
        ({"max_repeats": 1}, "max_repeats is 1"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=f"^{said}"):
        Sampling(**options)


def test_biases_by_decimal_strings() -> None:
    assert Sampling(logit_bias={"17": 2, 5: -1}).logit_bias == {17: 2.0, 5: -1.0}  # type: ignore[dict-item]
