"""Side by side with peers, on the same weights, threads and token ids, interleaved.

    python benchmarks/versus.py llama.cpp -m MODEL.gguf --peer-python PEER/bin/python --threads 2,1 --save
    python benchmarks/versus.py transformers --peer-python PEER/bin/python --save

Rounds: every runner reads prompts of --sizes tokens and then runs --tokens tokens one by one after the smallest of
them, one runner after the other; medians, quartiles and ratios of rounds are reported, with the machine's read
bandwidth measured between them. Token ids are random, so no tokenizer matters and routing spreads over the experts.

llama.cpp: the same GGUF file, in the layouts of --layouts, all of them in every round; ratios are against the better.
transformers: the model's numbers decoded to float32 in a folder with official names, eager attention and experts.

A peer runs in a process of its own, with the Python that --peer-python or FINBACK_PEER_PYTHON names: docs/bench.md says
how to make one. A missing peer is named.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peers.ours import Finback, PlainReading, bytes_per_token
from peers.process import Peer, PeerError
from peers.rounds import OURS, Plan, Runner, ratios_of, rows_of, run_rounds, share_of_roof

import finback
from finback.cli.table import table
from finback.errors import FinbackError
from finback.tools.bench_steps import model_of, random_ids
from finback.tools.export import export_folder
from finback.tools.record import Record, measured, new_record

RESULTS = Path(__file__).parent / "results"
PEER_PYTHON = "FINBACK_PEER_PYTHON"

LAYOUTS = {
    "mapped": {"mmap": True, "repack": False},
    "read": {"mmap": False, "repack": False},
    "repack": {"mmap": False, "repack": True},
}
"""How llama.cpp holds weights: the mapped file, a copy of it, a copy with rows interleaved where it has the kernels."""

PACKAGES = {"llama.cpp": "llama-cpp-python", "transformers": "torch and transformers"}


def arguments() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=list(PACKAGES))
    parser.add_argument("-m", "--model", type=Path, help="the model; without it the embedded one (transformers only)")
    parser.add_argument("--peer-python", default=os.environ.get(PEER_PYTHON), help=f"default: {PEER_PYTHON}")
    parser.add_argument("--threads", type=numbers, default=(2,), metavar="N,...")
    parser.add_argument("--sizes", type=numbers, default=(64, 512), metavar="N,...", help="tokens of prompts")
    parser.add_argument("--tokens", type=int, default=32, help="steps that are timed in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weights", choices=("auto", "mapped", "resident"), default="auto", help="finback's layout")
    parser.add_argument("--layouts", default="mapped,repack", help=f"llama.cpp's layouts: {', '.join(LAYOUTS)}")
    parser.add_argument("--save", action="store_true", help=f"write the record to {RESULTS.name}/")
    args = parser.parse_args()
    args.layouts = args.layouts.split(",")
    for layout in args.layouts:
        if layout not in LAYOUTS:
            parser.error(f"--layouts names {layout}; known are {', '.join(LAYOUTS)}")
    if args.peer == "llama.cpp" and args.model is None:
        parser.error("llama.cpp needs a GGUF file; give -m MODEL.gguf")
    if args.tokens < 1 or args.rounds < 1:
        parser.error("--tokens and --rounds must be at least 1")
    return args


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers from 1, separated by commas."""
    values = tuple(int(word) for word in text.split(","))
    if min(values) < 1:
        raise ValueError(text)
    return values


def main() -> None:
    args = arguments()
    try:
        record = measure(args)
    except (PeerError, FinbackError) as error:
        raise SystemExit(str(error)) from None
    print(report(record))
    if args.save:
        name = args.model.stem if args.model else "tiny"
        path = RESULTS / f"versus-{args.peer}-{name}-{datetime.datetime.now(datetime.UTC):%Y-%m-%d}.json"
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        print(f"\n{path}")


def measure(args: argparse.Namespace) -> Record:
    """The record of all numbers of threads."""
    plan = Plan(args.sizes, args.tokens, args.rounds)
    rows: list[dict[str, Any]] = []
    more: dict[str, list[dict[str, Any]]] = {"ratios": [], "reading": []}
    peers: dict[str, dict[str, Any]] = {}
    per_token = bytes_per_token(args.model)
    for threads in args.threads:
        head = {"threads": threads}
        with contextlib.ExitStack() as stack:
            started = dict(start_peers(args, plan, threads, stack))
            begun = time.perf_counter()
            engine = stack.enter_context(
                finback.load(args.model, threads=threads, weights=args.weights, context=plan.context)
            )
            load_s, model = time.perf_counter() - begun, model_of(engine)
            runners: dict[str, Runner] = {OURS: Finback(engine)}
            runners |= {name: peer for name, (peer, _) in started.items()}
            ids, reading = random_ids(engine, plan.context), PlainReading(engine.isa, threads)
            rates = run_rounds(runners, ids, plan, reading, progress(plan, threads))
        peers |= {name: said for name, (_, said) in started.items()}
        rows += rows_of(rates, head)
        more["ratios"] += ratios_of(rates, head)
        shares = share_of_roof(rates, min(plan.sizes), per_token)
        limits = measured("read_gbps", rates.read_gbps) | measured("load_average", rates.load_average)
        more["reading"].append({**head, **limits, "share_of_roof": shares})
    return new_record(
        "versus", engine.isa, rows, **more, model=model, bytes_per_token=per_token, weights=args.weights, peers=peers,
        prefill_chunk=engine.prefill_chunk, tokens=plan.tokens, rounds=plan.rounds, load_s=round(load_s, 2),
    )  # fmt: skip


def start_peers(
    args: argparse.Namespace, plan: Plan, threads: int, stack: contextlib.ExitStack
) -> Iterator[tuple[str, tuple[Peer, dict[str, Any]]]]:
    """Loaded peers by name, each with what it said of itself."""
    remedy = f"install {PACKAGES[args.peer]} as docs/bench.md says, and name that Python with --peer-python"
    if not args.peer_python:
        raise PeerError(f"the peer {args.peer} is missing: no Python is named for it; {remedy}")
    if args.peer == "transformers":
        model = stack.enter_context(tempfile.TemporaryDirectory())
        export_folder(args.model, model, format="F32")
        cases: dict[str, tuple[str, dict[str, Any]]] = {"transformers": ("transformers_worker.py", {"model": model})}
    else:
        file = {"model": str(args.model.resolve())}
        cases = {f"llama.cpp {name}": ("llama_cpp_worker.py", file | LAYOUTS[name]) for name in args.layouts}
    for name, (worker, fields) in cases.items():
        peer = stack.enter_context(Peer(name, args.peer_python, worker, remedy))
        begun = time.perf_counter()
        said = peer.ask("load", threads=threads, context=plan.context, **fields)
        yield name, (peer, said | {"load_s": round(time.perf_counter() - begun, 2)})


def progress(plan: Plan, threads: int) -> Any:
    """Says on stderr which round begins."""

    def say(i: int) -> None:
        print(f"{threads} threads, {'warm-up' if not i else f'round {i} of {plan.rounds}'}", file=sys.stderr)

    return say


def report(record: Record) -> str:
    """Tables of rates and ratios."""
    rates = [
        (row["runner"], row["what"], str(row["size"]), str(row["threads"]), f"{row['tokens_per_s']:.2f}",
         spread(row["tokens_per_s_spread"])) for row in record["rows"]
    ]  # fmt: skip
    ratios = [
        (row["against"], row["what"], str(row["size"]), str(row["threads"]), f"{row['ratio']:.2f}",
         spread(row["ratio_spread"])) for row in record["ratios"]
    ]  # fmt: skip
    head = ("what", "size", "threads")
    lines = [
        table(("runner", *head, "tokens/s", "quartiles"), rates, left=2),
        table(("finback over", *head, "ratio", "quartiles"), ratios, left=2),
    ]
    for row in record["reading"]:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in row["share_of_roof"].items())
        lines.append(
            f"{row['threads']} threads read {row['read_gbps']:.1f} GB/s; decoding's share of it: {shares}; "
            f"load average {row['load_average']:.1f}"
        )
    return "\n\n".join(lines)


def spread(pair: list[float]) -> str:
    """Quartiles."""
    return f"{pair[0]:.2f}-{pair[1]:.2f}"


if __name__ == "__main__":
    main()
