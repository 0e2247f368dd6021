"""Thousands of mixed requests at a real server, many of them bad, cut or left: does it stay as it was?

    python benchmarks/storm.py --requests 10000 --save

A process of `finback serve` with the embedded model gets requests of every dialect from --clients clients at once:
whole and streamed answers, clients that leave, bodies that are no JSON, bodies that are huge, fields that are wrong,
calls of tools, counting, several prompts. Every request that was not left has to be answered with a status that its
kind may have. Open files and memory are looked at every 500 requests; at the end open files must be back where they
were, nothing may be open, and the engine, which counts its pages over when it is idle, must go on.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import datetime
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx2

from finback.cli.table import table
from finback.tools.record import new_record

RESULTS = Path(__file__).parent / "results"
KINDS = (
    *("whole", "stream", "stream", "left", "left early", "broken", "huge", "wrong", "messages", "responses"),
    *("ollama", "completions", "count", "calls", "schema", "lost", "tokenize"),
)
WORDS = ("fox", "silver", "bell", "owl", "river", "tree", "story", "night", "and", "the")
TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}


class Server:
    """The process, its files and its memory."""

    def __init__(self) -> None:
        command = [sys.executable, "-u", "-m", "finback.cli.main", "serve", "--port", "0", "--memory", "256MiB"]
        command += ["--context", "2048", "--queue", "512", "--body-limit", "4MiB", "--prefix-cache", "48MiB"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://\S+", self.process.stdout.readline())
        assert found is not None, "the server did not start"
        self.url = found[0]
        while True:
            try:
                httpx2.get(self.url + "/health")
                return
            except httpx2.TransportError:
                time.sleep(0.05)

    def files(self) -> int:
        """Open files."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self) -> float:
        """Memory, MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


class Storm:
    """Requests, as dice say. counts: by kind and what came of them; wrong: answers that no such request may have."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.dice = url, random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def text(self, most: int = 60) -> str:
        """Some words."""
        return " ".join(self.dice.choice(WORDS) for _ in range(self.dice.randrange(1, most)))

    def chat(self, **more: Any) -> dict[str, Any]:
        """A body of chat completions."""
        said = [{"role": "user", "content": self.text()}]
        return {"messages": said, "max_tokens": self.dice.randrange(1, 30), "thinking": {"type": "disabled"}, **more}

    async def one(self, client: httpx2.AsyncClient) -> None:
        """One request of a random kind."""
        kind = self.dice.choice(KINDS)
        try:
            status = await getattr(self, "_" + kind.replace(" ", "_"))(client)
        except Exception as error:
            self.wrong.append(f"{kind}: {type(error).__name__}: {error}"[:200])
            return
        self.counts[f"{kind} {status}"] += 1

    async def _post(self, client: httpx2.AsyncClient, path: str, body: Any, *expected: int) -> int:
        answer = await client.post(self.url + path, json=body)
        return self._checked(path, answer, *expected)

    def _checked(self, path: str, answer: httpx2.Response, *expected: int) -> int:
        json.loads(answer.content)
        if answer.status_code not in (expected or (200,)):
            self.wrong.append(f"{path}: {answer.status_code} {answer.text[:120]}")
        return answer.status_code

    async def _read(self, client: httpx2.AsyncClient, path: str, body: Any, last: bytes) -> int:
        data = b""
        async with client.stream("POST", self.url + path, json=body) as answer:
            async for piece in answer.aiter_raw():
                data += piece
        if answer.status_code != 200 or last not in data[-400:]:
            self.wrong.append(f"{path}: {answer.status_code}, the stream ends with {data[-80:]!r}")
        return answer.status_code

    async def _whole(self, client: httpx2.AsyncClient) -> int:
        return await self._post(client, "/v1/chat/completions", self.chat(n=self.dice.randrange(1, 3)))

    async def _stream(self, client: httpx2.AsyncClient) -> int:
        return await self._read(client, "/v1/chat/completions", self.chat(stream=True), b"data: [DONE]")

    async def _left(self, client: httpx2.AsyncClient) -> str:
        body = self.chat(stream=True, max_tokens=400, min_tokens=400)
        async with client.stream("POST", self.url + "/v1/chat/completions", json=body) as answer:
            count = self.dice.randrange(0, 5)
            async for _ in answer.aiter_raw():
                count -= 1
                if count < 0:
                    break
        return "left"

    async def _left_early(self, client: httpx2.AsyncClient) -> str:
        try:
            body = self.chat(max_tokens=600, min_tokens=600)
            await client.post(self.url + "/v1/chat/completions", json=body, timeout=self.dice.random() * 0.05)
        except httpx2.TransportError:
            return "left"
        return "answered"

    async def _broken(self, client: httpx2.AsyncClient) -> int:
        bad = self.dice.choice((b"", b"{", b"[]", b"\xff\xfe", b'{"messages": 5}', b"[" * 5000, b"null", b'{"a": NaN}'))
        path = self.dice.choice(("/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/tokenize"))
        answer = await client.post(self.url + path, content=bad, headers={"content-type": "application/json"})
        return self._checked(path, answer, 400)

    async def _huge(self, client: httpx2.AsyncClient) -> int:
        try:
            body = json.dumps(self.chat(user="x" * 5_000_000)).encode()
            headers = {"content-type": "application/json"}
            answer = await client.post(self.url + "/v1/chat/completions", content=body, headers=headers)
        except (httpx2.WriteError, httpx2.RemoteProtocolError, httpx2.ReadError):
            return 413  # refused by its head: the rest of the body met a closed connection
        return self._checked("huge", answer, 413)

    async def _wrong(self, client: httpx2.AsyncClient) -> int:
        bad = self.dice.choice(({"temperature": "x"}, {"stop": ""}, {"n": 0}, {"tools": [1]}, {"messages": []}))
        return await self._post(client, "/v1/chat/completions", self.chat(**bad), 400)

    async def _messages(self, client: httpx2.AsyncClient) -> int:
        body = {k: v for k, v in self.chat(stream=True).items() if k != "n"}
        return await self._read(client, "/v1/messages", body, b"message_stop")

    async def _responses(self, client: httpx2.AsyncClient) -> int:
        body = {"input": self.text(), "max_output_tokens": 9, "stream": True, "reasoning": {"effort": "none"}}
        return await self._read(client, "/v1/responses", body, b"response")

    async def _ollama(self, client: httpx2.AsyncClient) -> int:
        body = {"model": "finback-tiny", "messages": [{"role": "user", "content": self.text()}], "think": False}
        return await self._read(client, "/api/chat", body | {"options": {"num_predict": 9}}, b'"done":true')

    async def _completions(self, client: httpx2.AsyncClient) -> int:
        body = {"prompt": [self.text() for _ in range(self.dice.randrange(1, 5))], "max_tokens": 5, "echo": True}
        return await self._post(client, "/v1/completions", body | {"logprobs": 1})

    async def _count(self, client: httpx2.AsyncClient) -> int:
        return await self._post(client, "/v1/messages/count_tokens", self.chat())

    async def _calls(self, client: httpx2.AsyncClient) -> int:
        tools = [{"type": "function", "function": TOOL}]
        return await self._post(client, "/v1/chat/completions", self.chat(tools=tools, tool_choice="required"))

    async def _schema(self, client: httpx2.AsyncClient) -> int:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return await self._post(client, "/v1/chat/completions", self.chat(response_format=form))

    async def _lost(self, client: httpx2.AsyncClient) -> int:
        return await self._post(client, "/v1/nothing", {}, 404)

    async def _tokenize(self, client: httpx2.AsyncClient) -> int:
        return await self._post(client, "/tokenize", {"content": self.text()})


async def blow(server: Server, args: argparse.Namespace) -> tuple[Storm, list[dict[str, Any]]]:
    """All requests, as fast as they are answered; what was seen of the process every 500."""
    storm, left = Storm(server.url, args.seed), iter(range(args.requests))
    seen: list[dict[str, Any]] = []

    async def client_of_many() -> None:
        async with httpx2.AsyncClient(timeout=120) as client:
            for number in left:
                await storm.one(client)
                if number % 500 == 499:
                    found = {"requests": number + 1, "files": server.files(), "rss_mib": round(server.resident(), 1)}
                    seen.append(found)
                    print(found, flush=True)

    await asyncio.gather(*(client_of_many() for _ in range(args.clients)))
    return storm, seen


def slope(seen: list[dict[str, Any]]) -> float:
    """MiB for a thousand requests, by least squares over the second half; 0 where too little was seen."""
    if len(seen) < 3:
        return 0.0
    points = [(s["requests"] / 1000, s["rss_mib"]) for s in seen[len(seen) // 2 :]]
    x_mean, y_mean = (sum(column) / len(points) for column in zip(*points, strict=True))
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread if spread else 0.0


def settled(server: Server) -> dict[str, Any]:
    """What the engine holds when nothing is being answered."""
    for _ in range(600):
        gauges = dict(re.findall(r"^finback_(\w+) (\S+)$", httpx2.get(server.url + "/metrics").text, re.M))
        if not any(float(gauges[name]) for name in ("requests_waiting", "requests_reading", "requests_running")):
            break
        time.sleep(0.1)
    time.sleep(1.0)  # the engine counts its pages when it has nothing to do, and answers no more if one was lost
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    goes_on = httpx2.post(server.url + "/v1/chat/completions", json=body, timeout=60).status_code == 200
    return {"open": httpx2.get(server.url + "/slots").json(), "goes_on": goes_on}


def arguments(description: str | None, *, clients: int) -> argparse.ArgumentParser:
    """The options that storms and soaks share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=clients)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", action="store_true", help="write a record to benchmarks/results")
    return parser


Weather = Callable[[Server, argparse.Namespace], Coroutine[Any, Any, tuple[Storm, list[dict[str, Any]]]]]
"""What is done to a server; the requests, and what was seen of the process meanwhile."""


def run(what: str, weather: Weather, args: argparse.Namespace) -> None:
    """Do it, look, say; the exit status is 1 if the server is not as it was."""
    server = Server()
    try:
        before, begun = server.files(), time.monotonic()
        storm, seen = asyncio.run(weather(server, args))
        held = settled(server)
        row = {
            "what": what,
            "requests": sum(storm.counts.values()) + len(storm.wrong),
            "clients": args.clients,
            "seconds": round(time.monotonic() - begun, 1),
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
    for kind, count in sorted(storm.counts.items()):
        print(f"{kind:<28} {count}")
    for line in storm.wrong[:20]:
        print("WRONG", line)
    print(table(list(row), [[str(value) for value in row.values()]]))
    if args.save:
        path = RESULTS / f"{what}-{datetime.date.today()}.json"
        record = new_record(what, "any", [row], seen=seen, counts=dict(storm.counts))
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(path)
    sys.exit(bool(storm.wrong or held["open"] or not held["goes_on"]))


def main() -> None:
    """A storm."""
    parser = arguments(__doc__, clients=12)
    parser.add_argument("--requests", type=int, default=10_000)
    run("storm", blow, parser.parse_args())


if __name__ == "__main__":
    main()
