"""Side by side with peers, on the same weights, threads and prompt, interleaved.

    python benchmarks/versus.py transformers [--threads 2] [--tokens 64] [--rounds 5] [--out FILE.json]

transformers: the embedded model's numbers, decoded to float32, are written as a model folder with official names, which
transformers loads (eager attention and experts); finback runs the Q8_0 file. Each round times finback and the peer
one after the other; medians and spread are printed, with the machine's read bandwidth measured in the same run.
Needs torch and transformers (`make bench-transformers` installs them in an environment of their own); a missing peer
is named.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import finback
from finback.config import ARITHMETIC_VERSION
from finback.tools.export import export_folder

PROMPT = [{"role": "user", "content": "Tell me a story about a fox and a silver bell."}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=["transformers"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        record = against_transformers(args)
    except ModuleNotFoundError as error:
        raise SystemExit(f"the peer is missing: {error.name} is not installed; run make bench-transformers") from None
    print(json.dumps(record, indent=2))
    if args.out:
        args.out.write_text(json.dumps(record, indent=2) + "\n")


def against_transformers(args: argparse.Namespace) -> dict[str, object]:
    """Decode and prefill rates of both, interleaved."""
    import torch
    from transformers import DeepseekV4ForCausalLM

    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as folder, finback.load(threads=args.threads) as engine:
        export_folder(None, folder, format="F32")
        peer = DeepseekV4ForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        ids = engine.encode(PROMPT)
        long = (ids * (args.prefill // len(ids) + 1))[: args.prefill]
        rates: dict[str, list[float]] = {"finback_decode": [], "transformers_decode": [], "finback_prefill": []}
        read = []
        for _ in range(args.rounds):
            rates["finback_decode"].append(finback_decode(engine, ids, args.tokens))
            rates["transformers_decode"].append(transformers_decode(peer, ids, args.tokens))
            rates["finback_prefill"].append(finback_prefill(engine, long))
            read.append(read_bandwidth())
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "machine": f"{platform.machine()}, {platform.processor() or 'cpu'}, {args.threads} threads",
        "commit": commit(),
        "level": engine.isa,
        "arithmetic_version": ARITHMETIC_VERSION,
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")},
        "read_gbps_one_thread": statistics.median(read),
        "tokens_per_s": {n: {"median": medians[n], "min": min(v), "max": max(v)} for n, v in rates.items()},
        "decode_ratio": medians["finback_decode"] / medians["transformers_decode"],
        "prefill_over_decode": medians["finback_prefill"] / medians["finback_decode"],
        "prompt_tokens": len(ids),
        "decoded_tokens": args.tokens,
        "prefill_tokens": args.prefill,
    }


def finback_decode(engine: finback.Engine, ids: list[int], tokens: int) -> float:
    """Greedy tokens a second after a prompt."""
    answer = engine.generate(ids, finback.Sampling(temperature=0, max_tokens=tokens + 1, ignore_eos=True))
    return tokens / answer.timings.decode_s


def finback_prefill(engine: finback.Engine, ids: list[int]) -> float:
    """Prompt tokens a second."""
    with engine.session() as session:
        begun = time.perf_counter()
        session.append(ids)
        return len(ids) / (time.perf_counter() - begun)


def transformers_decode(peer: object, ids: list[int], tokens: int) -> float:
    """Greedy tokens a second after a prompt, with the library's cache."""
    import torch

    with torch.no_grad():
        out = peer(torch.tensor([ids]), use_cache=True)  # type: ignore[operator]
        token = out.logits[:, -1:].argmax(-1)
        begun = time.perf_counter()
        for _ in range(tokens):
            out = peer(token, past_key_values=out.past_key_values, use_cache=True)  # type: ignore[operator]
            token = out.logits[:, -1:].argmax(-1)
        return tokens / (time.perf_counter() - begun)


def read_bandwidth(size: int = 256 << 20) -> float:
    """GB/s of one thread summing a large array: a floor for what memory gives."""
    data = np.ones(size // 8, np.float64)
    begun = time.perf_counter()
    data.sum()
    return size / (time.perf_counter() - begun) / 1e9


def commit() -> str:
    """The checked-out commit, or "unknown" outside a clone."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
