"""How fast a loaded model reads a prompt and writes an answer, at the lengths of context asked for.

Owns what a measurement is: intervals of steps through the same calls an answer takes, the token drawn and then replaced
by a random one, so that routing spreads over the experts as text makes it and does not depend on the model's taste. A
context is made up (`Session.fill`), not computed: 262,144 tokens cost seconds. Refuses lengths beyond the engine's
context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from finback import native
from finback.engine.sampling import Sampling
from finback.errors import RequestError
from finback.kv.layout import MAX_DRAFT, plan_layout
from finback.tools.record import Record, Row, measured, new_record, rounded

if TYPE_CHECKING:
    from finback.engine.engine import Engine

OnDone = Callable[[int, int], None]

WARM_UP = 3
"""Steps before the first interval: pages of weights come in, threads start."""


def context_for(depths: Sequence[int], more: int) -> int:
    """The context that an engine needs to measure `more` tokens at each depth."""
    return max(depths) + more + WARM_UP + 1


def bench_decode(
    engine: Engine,
    depths: Sequence[int],
    *,
    tokens: int,
    repeats: int,
    weights: str,
    on_done: OnDone = lambda done, total: None,
) -> Record:
    """Tokens a second, one at a time, in `repeats` intervals of `tokens` that follow each depth. `weights`: how the
    engine was asked to hold them, for the record."""
    _check(engine, depths, repeats * tokens)
    rows = []
    for i, depth in enumerate(depths):
        on_done(i, len(depths))
        rows.append(_decode_at(engine, depth, tokens, repeats))
    on_done(len(depths), len(depths))
    return new_record("decode", engine.isa, rows, model=model_of(engine), weights=weights, repeats=repeats)


def _decode_at(engine: Engine, depth: int, tokens: int, repeats: int) -> Row:
    ids = random_ids(engine, depth + WARM_UP + repeats * tokens)
    greedy = Sampling(temperature=0)
    before = native.buffer_bytes()
    rates = []
    with engine.session() as session:
        session.fill(ids[:depth])
        memory = memory_of(engine, depth, native.buffer_bytes() - before)
        at = depth
        for count in (WARM_UP, *[tokens] * repeats):
            begun = time.perf_counter()
            for token in ids[at : at + count]:
                session.append([token])
                engine.draw(session, greedy)
            rates.append(count / (time.perf_counter() - begun))
            at += count
    row: Row = {"depth": depth, "tokens": tokens, "threads": engine.threads}
    row |= measured("tokens_per_s", rates[1:])
    return row | {"ms_per_token": rounded(1e3 / row["tokens_per_s"]), "memory": memory}


def bench_prefill(
    engine: Engine,
    sizes: Sequence[int],
    depths: Sequence[int],
    *,
    repeats: int,
    weights: str,
    on_done: OnDone = lambda done, total: None,
) -> Record:
    """Prompt tokens a second: `sizes` tokens read at each depth. The sizes take turns, so that a slow moment of the
    machine meets them all."""
    _check(engine, depths, max(sizes))
    cases = [(size, depth) for depth in depths for size in sizes]
    rates: dict[tuple[int, int], list[float]] = {case: [] for case in cases}
    for size, depth in cases:
        _prefill(engine, min(size, engine.prefill_chunk), depth)  # warm-up
    for i in range(repeats):
        for j, case in enumerate(cases):
            on_done(i * len(cases) + j, repeats * len(cases))
            rates[case].append(_prefill(engine, *case))
    on_done(repeats * len(cases), repeats * len(cases))
    rows: list[Row] = [
        {"size": size, "depth": depth, "threads": engine.threads} | measured("tokens_per_s", rates[size, depth])
        for size, depth in cases
    ]
    return new_record(
        "prefill",
        engine.isa,
        rows,
        model=model_of(engine),
        weights=weights,
        repeats=repeats,
        prefill_chunk=engine.prefill_chunk,
    )


def _prefill(engine: Engine, size: int, depth: int) -> float:
    ids = random_ids(engine, depth + size)
    with engine.session() as session:
        session.fill(ids[:depth])
        begun = time.perf_counter()
        session.append(ids[depth:])
        return size / (time.perf_counter() - begun)


# ---- shared


def random_ids(engine: Engine, count: int) -> list[int]:
    """Token ids, the same for every run of a model."""
    ids: list[int] = np.random.default_rng(0).integers(0, engine.config.vocab_size, count).tolist()
    return ids


def memory_of(engine: Engine, depth: int, held: int) -> dict[str, Any]:
    """Bytes that a session of `depth` tokens holds, beside those of docs/memory.md, and the whole ledger."""
    layout = plan_layout(engine.config, cache_rounding=engine.cache_rounding, max_draft=MAX_DRAFT)
    planned = layout.bytes_for(depth)
    return {"held": held, "formula": planned, "ratio": rounded(held / planned), "ledger": engine.memory()}


def model_of(engine: Engine) -> dict[str, Any]:
    """What was run: enough to tell whether two records are of one model."""
    return {
        "name": engine.path.name,
        "layers": engine.config.num_hidden_layers,
        "hidden": engine.config.hidden_size,
        "experts": engine.config.n_routed_experts,
        "vocab": engine.config.vocab_size,
        "weights_bytes": engine.memory()["weights"],
        "cache_rounding": engine.cache_rounding,
    }


def _check(engine: Engine, depths: Sequence[int], more: int) -> None:
    for depth in depths:
        if depth < 0 or context_for([depth], more) > engine.context:
            raise RequestError(
                f"depth is {depth}; with {more} tokens to measure it must be from 0 to "
                f"{engine.context - context_for([0], more)} in a context of {engine.context}; raise --context"
            )
