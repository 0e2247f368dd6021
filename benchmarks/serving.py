"""Many requests at once, measured on the engine that answers them: no server, no peer.

    python benchmarks/serving.py concurrent -m MODEL.gguf --threads 2,1 --save
    python benchmarks/serving.py behind --prompt 16384 --save
    python benchmarks/serving.py turn --prompt 12288 --save

concurrent: 1 and --streams answers drawn together, in turn, so that both meet the same machine. Beside tokens a second:
the bound, which is what plain reading allows for the bytes that such a step needs (everything but the experts once, and
the experts that so many rows choose if they choose evenly), and the share of time between steps.
behind: a short request and running answers while a long prompt is read, under several settings of prefill_share and
max_stall: the time to the short one's first token, the long one's, and what is left of the answers' speed.
turn: the next turn of a conversation of --prompt tokens: its first token after --new more, against a prompt of --new
tokens alone.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.ours import PlainReading, dense_bytes, expert_bytes

import finback
from finback import Sampling
from finback.cli.table import table
from finback.tools import svg
from finback.tools.bench_steps import model_of
from finback.tools.record import Row, measured, new_record, rounded

RESULTS = Path(__file__).parent / "results"

ALONE_S = 5.0
"""Seconds that answers run without the prompt, for comparison."""

STREAM_TOKENS = 40_000
"""Of each running answer: more than are drawn while the long prompt is read."""

SETTINGS = ((0.4, 1.0), (0.4, 0.25), (0.2, 0.5), (0.6, 2.0))
"""prefill_share and max_stall that `behind` compares; the first are the defaults."""


def arguments() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("concurrent", "behind", "turn"))
    parser.add_argument("-m", "--model", type=Path, help="the model; without it the embedded one")
    parser.add_argument("--threads", type=numbers, default=(2,), metavar="N,...")
    parser.add_argument("--streams", type=int, default=8, help="answers drawn together")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of each answer that are timed")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the long prompt")
    parser.add_argument("--new", type=int, default=300, help="tokens of the next turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weights", choices=("auto", "mapped", "resident"), default="auto")
    parser.add_argument("--save", action="store_true", help=f"write the record to {RESULTS.name}/")
    return parser.parse_args()


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers, separated by commas."""
    return tuple(int(item) for item in text.split(","))


class Ids:
    """Token ids that nobody asked for before, the same in every run."""

    def __init__(self, vocab: int) -> None:
        self._vocab, self._state = vocab, 1

    def __call__(self, n: int) -> list[int]:
        found = []
        for _ in range(n):
            self._state = self._state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
            found.append(3 + (self._state >> 33) % (self._vocab - 3))
        return found


def endless(tokens: int, seed: int) -> Sampling:
    """An answer of exactly so many tokens, drawn so that routing spreads over the experts."""
    return Sampling(max_tokens=tokens, ignore_eos=True, temperature=1.0, seed=seed)


# ---- concurrent


def concurrent(args: argparse.Namespace, threads: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows for one answer and for --streams."""
    with finback.load(
        args.model, threads=threads, weights=args.weights, prefix_cache=0, context=128 + args.tokens
    ) as engine:
        ids, plain = Ids(engine.config.vocab_size), PlainReading(engine.isa, threads)
        rates: dict[int, list[float]] = {1: [], args.streams: []}
        shares: dict[int, list[float]] = {1: [], args.streams: []}
        gaps: dict[int, list[float]] = {1: [], args.streams: []}
        dense, expert = dense_bytes(args.model), expert_bytes(args.model)
        for round_number in range(args.rounds + 1):  # the first warms up
            for n in rates if round_number % 2 else reversed(rates):
                read = plain()
                seconds, gap = decode_steps(engine, ids, n, args.tokens)
                if not round_number:
                    continue
                rates[n].append(n / (seconds + gap))
                chosen = engine.config.num_experts_per_tok / engine.config.n_routed_experts
                needed = dense + expert * engine.config.n_routed_experts * (1 - (1 - chosen) ** n)
                shares[n].append((needed / (seconds + gap)) / (read * 1e9))
                gaps[n].append(gap / (seconds + gap))
        rows = [
            {
                "what": "decode",
                "streams": n,
                "threads": threads,
                **measured("tokens_per_s", rates[n]),
                **measured("share_of_bound", shares[n]),
                **measured("gap_share", gaps[n]),
                **measured("over_one", [a / b for a, b in zip(rates[n], rates[1], strict=True)]),
            }
            for n in rates
        ]
        return rows, model_of(engine)


def decode_steps(engine: finback.Engine, ids: Ids, n: int, tokens: int) -> tuple[float, float]:
    """Median seconds of a decode step of `n` answers, and of the time before it."""
    running = [engine.submit(ids(16), endless(tokens + 4, i)) for i in range(n)]
    for request in running:
        request.result()
    steps = [s for s in engine.stats().last_steps[-3 * tokens :] if s.kind == "decode" and s.sequences == n]
    together = [step for step in steps if step.gap is not None][-tokens:]
    return statistics.median(s.seconds for s in together), statistics.median(s.gap or 0.0 for s in together)


# ---- behind


def behind(args: argparse.Namespace, threads: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows for each setting."""
    rows: list[Row] = []
    for share, stall in SETTINGS:
        with finback.load(
            args.model,
            threads=threads,
            weights=args.weights,
            context=max(args.prompt, STREAM_TOKENS) + 4096,
            prefill_share=share,
            max_stall=stall,
        ) as engine:
            model, ids = model_of(engine), Ids(engine.config.vocab_size)
            engine.generate(ids(300), endless(4, 0))  # the costs of steps are learned
            found = squeeze(engine, ids, args)
            rows.append({"what": "behind", "share": share, "stall": stall, "threads": threads} | found)
    return rows, model


def squeeze(engine: finback.Engine, ids: Ids, args: argparse.Namespace) -> Row:
    """Three answers run; a long prompt arrives, and a short one when a tenth of it is read."""
    arrivals: list[float] = []
    streams = [engine.submit(ids(16), endless(STREAM_TOKENS, i)) for i in range(3)]

    def listen(stream: Any) -> None:
        arrivals.extend(time.perf_counter() for event in stream for _ in event.token_ids)

    readers = [threading.Thread(target=listen, args=(stream,)) for stream in streams]
    for reader in readers:
        reader.start()
    time.sleep(ALONE_S + 1.0)
    begun = time.perf_counter()
    long = engine.submit(ids(args.prompt), endless(1, 0))
    short_first = 0.0
    for event in long:
        if event.progress is not None and not short_first and event.progress[0] >= 0.1 * args.prompt:
            asked = time.perf_counter()
            engine.submit(ids(32), endless(1, 1)).result()
            short_first = time.perf_counter() - asked
    ended = time.perf_counter()
    for stream in streams:
        stream.cancel()
    for reader in readers:
        reader.join()
    alone = [t for t in arrivals if begun - ALONE_S <= t < begun]
    during = sorted(t for t in arrivals if begun <= t < ended)
    pauses = [b - a for a, b in itertools.pairwise(during)]
    return {
        "prompt": args.prompt,
        "long_s": rounded(ended - begun),
        "short_first_s": rounded(short_first),
        "short_share": rounded(short_first / (ended - begun)),
        "speed_kept": rounded((len(during) / (ended - begun)) / (len(alone) / ALONE_S)),
        "longest_stall_s": rounded(max(pauses)),
    }


# ---- turn


def turn(args: argparse.Namespace, threads: int) -> tuple[list[Row], dict[str, Any]]:
    """The next turn against a prompt of its new tokens alone, in turn."""
    with finback.load(
        args.model, threads=threads, weights=args.weights, context=args.prompt + args.new * (args.rounds + 2) + 64
    ) as engine:
        ids = Ids(engine.config.vocab_size)
        before = ids(args.prompt)
        engine.prefill(before)
        warm, alone, rows_computed = [], [], []
        for _ in range(args.rounds):
            alone.append(engine.generate(ids(args.new), endless(1, 0)).timings.prefill_s)
            counted = engine.stats().rows["prefill"]
            warm.append(engine.generate([*before, *ids(args.new)], endless(1, 0)).timings.prefill_s)
            rows_computed.append(engine.stats().rows["prefill"] - counted)
        row = {
            "what": "turn",
            "prompt": args.prompt,
            "new": args.new,
            "threads": threads,
            "rows_computed": rows_computed,
            **measured("first_token_s", warm),
            **measured("alone_s", alone),
            **measured("ratio", [a / b for a, b in zip(warm, alone, strict=True)]),
        }
        return [row], model_of(engine)


def plot(rows: Sequence[Row]) -> str:
    """What each setting of `behind` does to the long prompt, to running answers and to the short request."""
    titles = (("speed_kept", "speed that running answers keep"), ("short_share", "first token of a short request"))
    charts: list[svg.Bars | svg.Lines] = []
    for measure, title in titles:
        bars = [
            svg.Bar(f"prefill_share {row['share']}, max_stall {row['stall']} s", *[row[measure]] * 3) for row in rows
        ]
        charts.append(svg.Bars(f"While {rows[0]['prompt']} tokens are read: {title}", "share", bars))
    return svg.draw(charts)


def main() -> None:
    """Measure, print, save."""
    args = arguments()
    rows: list[Row] = []
    model: dict[str, Any] = {}
    reading = []
    for threads in args.threads:
        more, model = {"concurrent": concurrent, "behind": behind, "turn": turn}[args.what](args, threads)
        rows += more
        level = finback.load(threads=1).isa
        reading.append({"threads": threads, "read_gbps": rounded(PlainReading(level, threads)())})
    record = new_record("serving", level, rows, model=model, reading=reading)
    names = [name for name in rows[0] if not name.endswith("_spread")]
    print(table(names, [[str(row[name]) for name in names] for row in rows]))
    if args.save:
        stem = f"serving-{args.what}-{Path(model['name']).stem}-{datetime.date.today()}"
        (RESULTS / f"{stem}.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if args.what == "behind":
            (RESULTS / f"{stem}.svg").write_text(plot(rows), encoding="utf-8")
        print(RESULTS / f"{stem}.json")


if __name__ == "__main__":
    main()
