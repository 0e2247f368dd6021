"""A mixed load for a long time: does the server stay as it was?

    python benchmarks/soak.py --seconds 3600 --save
    python benchmarks/soak.py --seconds 60            as a quick look

The requests of `benchmarks/storm.py`, from --clients clients with pauses between, until the time is over. Open files,
memory and the times to answer are looked at every minute; the record has them all.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

import httpx2
from storm import Server, Storm, arguments, run


async def load(storm: Storm, until: float, times: list[float]) -> None:
    """One client: a request, a pause, and so on."""
    async with httpx2.AsyncClient(timeout=120) as client:
        while time.monotonic() < until:
            begun = time.monotonic()
            await storm.one(client)
            times.append(time.monotonic() - begun)
            await asyncio.sleep(storm.dice.random() * 0.2)


async def soak(server: Server, args: argparse.Namespace) -> tuple[Storm, list[dict[str, Any]]]:
    """All clients, and a look at the process every minute."""
    storm, seen, times = Storm(server.url, args.seed), [], []
    begun = time.monotonic()
    until = begun + args.seconds
    clients = [asyncio.ensure_future(load(storm, until, times)) for _ in range(args.clients)]
    while time.monotonic() < until:
        await asyncio.sleep(min(60.0, until - time.monotonic()) + 0.01)
        done = sum(storm.counts.values()) + len(storm.wrong)
        recent = times[-1000:] or [0.0]
        found = {
            "seconds": round(time.monotonic() - begun),
            "requests": done,
            "files": server.files(),
            "rss_mib": round(server.resident(), 1),
            "median_s": round(statistics.median(recent), 4),
            "slowest_s": round(max(recent), 3),
        }
        seen.append(found)
        print(found, flush=True)
    await asyncio.gather(*clients)
    return storm, seen


def main() -> None:
    """A soak."""
    parser = arguments(__doc__, clients=6)
    parser.add_argument("--seconds", type=int, default=3600)
    run("soak", soak, parser.parse_args())


if __name__ == "__main__":
    main()
