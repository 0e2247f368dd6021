"""A mixed load for a long time: does the server stay as it was?

    python benchmarks/soak.py --seconds 3600 --save
    python benchmarks/soak.py --seconds 60            as a quick look

The requests of `benchmarks/storm.py`, from --clients clients with pauses between, until the time is over. Open files,
memory and the times to answer are looked at every minute; the record has them all.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import statistics
import sys
import time
from typing import Any

import httpx2
from storm import RESULTS, Server, Storm, settled, slope

from finback.cli.table import table
from finback.tools.record import new_record


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
    """Soak, look, say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write a record to benchmarks/results")
    args = parser.parse_args()
    server = Server()
    try:
        before = server.files()
        storm, seen = asyncio.run(soak(server, args))
        held = settled(server)
        row = {
            "what": "soak",
            "seconds": args.seconds,
            "clients": args.clients,
            "requests": seen[-1]["requests"],
            "files_before": before,
            "files_after": server.files(),
            "rss_mib_per_1000": round(slope(seen), 3),
            "wrong": len(storm.wrong),
            "open": len(held["open"]),
            "goes_on": held["goes_on"],
        }
    finally:
        server.process.terminate()
        server.process.wait(60)
    for line in storm.wrong[:20]:
        print("WRONG", line)
    print(table(list(row), [[str(value) for value in row.values()]]))
    if args.save:
        path = RESULTS / f"soak-{datetime.date.today()}.json"
        record = new_record("soak", "any", [row], seen=seen, counts=dict(storm.counts))
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(path)
    sys.exit(bool(storm.wrong or held["open"] or not held["goes_on"]))


if __name__ == "__main__":
    main()
