"""The server as clients meet it, with a scripted engine: what is told, what is refused, and who waits.

Cases C05, C07, C15, C17, D01, D03, D05, D07, D09, D11, D21, D23, I05, I09.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from finback.server.ask import Defaults
from finback.server.service import Settings
from finback.tools.scripted import Line, ScriptedEngine
from tests.server.running import CALL4, TOOL, Running, chat, loads, running, tiny_tokenizer
from tests.server.streams import sse_events


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as found:
        yield found


def chunks(server: Running, body: dict[str, Any], path: str = "/v1/chat/completions") -> list[Any]:
    pieces = b"".join(server.stream(path, {**body, "stream": True}))
    return [data for _, data in sse_events([pieces])]


def joined(events: list[Any]) -> tuple[str, str, list[dict[str, Any]], str]:
    """Thinking, content, calls and finish reason of a chat stream."""
    thought = said = finish = ""
    calls: list[dict[str, Any]] = []
    for event in events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            thought += delta.get("reasoning_content") or ""
            said += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({"id": call["id"], **call["function"]})
                else:
                    calls[call["index"]]["arguments"] += call["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    assert events[-1] == "[DONE]"
    return thought, said, calls, finish


# ---- what is told


def test_thinking_content_and_calls_in_both_ways(server: Running) -> None:
    body = chat(tools=[TOOL], thinking={"type": "enabled"})
    text = "hm, weather</think>Let me see." + CALL4
    server.engine.say(text, text)
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    thought, said, calls, finish = joined(chunks(server, body))
    message = whole["message"]
    assert (thought, said, finish) == ("hm, weather", "Let me see.", "tool_calls")
    assert (message["reasoning_content"], message["content"], whole["finish_reason"]) == (thought, said, finish)
    (call,), (streamed,) = message["tool_calls"], calls
    assert call["function"] == {"name": "look_up", "arguments": streamed["arguments"]}
    assert json.loads(streamed["arguments"]) == {"place": "Oslo", "days": 2}
    assert call["id"] != streamed["id"], "ids are unguessable"


def test_calls_without_tools_are_taken_out(server: Running) -> None:
    server.engine.say("Here." + CALL4)
    choice = server.post("/v1/chat/completions", chat()).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Here.", "stop")
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("limit", [3, 12, 25, 40, 60])
def test_calls_cut_by_the_limit(server: Running, limit: int) -> None:
    note = CALL4.replace("Oslo", "north " * 60)
    body = chat(tools=[TOOL], max_tokens=limit)
    server.engine.say(note, note)
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    _, _, calls, finish = joined(chunks(server, body))
    assert (whole["finish_reason"], finish) == ("length", "length")
    told = [(c["function"]["name"], c["function"]["arguments"]) for c in whole["message"].get("tool_calls", ())]
    assert told == [(c["name"], c["arguments"]) for c in calls]
    server.engine.say(note, note)
    anthropic = {"max_tokens": limit, "messages": [{"role": "user", "content": "Hi"}]}
    tool = {"name": "look_up", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    assert server.post("/v1/messages", {**anthropic, "tools": [tool]}).json()["stop_reason"] == "max_tokens"
    ollama = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "stream": False}
    told_by_ollama = server.post("/api/chat", {**ollama, "options": {"num_predict": limit}}).json()
    assert told_by_ollama["done_reason"] == "length"


def test_only_one_call_where_one_is_wanted(server: Running) -> None:
    two = CALL4.replace("</｜DSML｜tool_calls>", "") + CALL4.partition("tool_calls>\n")[2]
    server.engine.say("I look." + two, "I look." + two)
    body = chat(tools=[TOOL], parallel_tool_calls=False)
    choice = server.post("/v1/chat/completions", body).json()["choices"][0]
    assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "tool_calls")
    _, _, calls, finish = joined(chunks(server, body))
    assert (len(calls), finish) == (1, "tool_calls")
    server.settled()


def test_responses_tell_a_call_once(server: Running) -> None:
    tool = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    server.engine.say("Ok." + CALL4)
    pieces = b"".join(server.stream("/v1/responses", {"input": "Hi", "tools": [tool], "stream": True}))
    events = sse_events([pieces])
    names = [name for name, _ in events]
    assert (names[0], names[-1]) == ("response.created", "response.completed")
    deltas = [data["delta"] for name, data in events if name == "response.output_text.delta"]
    assert "".join(deltas) == "Ok."
    added = [data["item"] for name, data in events if name == "response.output_item.added"]
    assert [item["type"] for item in added] == ["message", "function_call"]
    assert names.count("response.function_call_arguments.done") == 1
    output = events[-1][1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]
    assert json.loads(output[1]["arguments"]) == {"place": "Oslo", "days": 2}


def test_a_response_is_gone_on_from(server: Running) -> None:
    server.engine.say("One.", "Two.")
    first = server.post("/v1/responses", {"input": "Hi"}).json()
    assert server.get(f"/v1/responses/{first['id']}").json() == first
    again = {"input": "And?", "previous_response_id": first["id"]}
    count = server.post("/v1/responses/input_tokens", again).json()["input_tokens"]
    second = server.post("/v1/responses", again).json()
    assert second["usage"]["input_tokens"] == count > first["usage"]["input_tokens"] + 2
    assert second["previous_response_id"] == first["id"]
    assert server.client.delete(f"{server.url}/v1/responses/{first['id']}").json()["deleted"]
    assert server.get(f"/v1/responses/{first['id']}").status_code == 404
    gone = server.post("/v1/responses", again)
    assert (gone.status_code, gone.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_usage_adds_up_in_both_ways(server: Running) -> None:
    body = chat("Something that nobody said before", thinking={"type": "enabled"})
    server.engine.say("think</think>said", "think</think>said")
    whole = server.post("/v1/chat/completions", body).json()["usage"]
    streamed = chunks(server, {**body, "stream_options": {"include_usage": True}})[-2]["usage"]
    for usage in (whole, streamed):
        assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
        assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]
    assert 0 < streamed["prompt_tokens_details"]["cached_tokens"] < streamed["prompt_tokens"]
    for key in ("prompt_tokens", "completion_tokens"):
        assert whole[key] == streamed[key]


def test_counting_tells_the_truth(server: Running) -> None:
    body = {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes?"}]},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        ],
        "tools": [{"name": "look_up", "input_schema": TOOL["function"]["parameters"]}],  # type: ignore[index]
    }
    for thinking in ({"type": "disabled"}, {"type": "enabled", "budget_tokens": 2000}):
        asked = {**body, "thinking": thinking}
        before = server.engine.runs
        counted = server.post("/v1/messages/count_tokens?beta=true", asked).json()["input_tokens"]
        assert server.engine.runs == before
        server.engine.say("ok</think>yes")
        usage = server.post("/v1/messages", {**asked, "max_tokens": 50}).json()["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted


@pytest.mark.parametrize("stop", [[">>>>>>> UPDATED", ">>>>>>> UPDATED\n"], ">>>>>>> UPDATED"])
def test_stop_strings_are_cut_exactly(server: Running, stop: Any) -> None:
    text = "x >>>>>>> UPDATED\n y"
    body = chat(stop=stop)
    server.engine.say(text, text)
    whole = server.post("/v1/chat/completions", body).json()["choices"][0]
    _, said, _, finish = joined(chunks(server, body))
    assert (whole["message"]["content"], said, finish) == ("x ", "x ", "stop")
    assert whole["stop_reason"] == ">>>>>>> UPDATED"
    server.engine.say(f"I write {text}</think>done")
    thinking = server.post("/v1/chat/completions", chat(stop=stop, thinking={"type": "enabled"})).json()["choices"][0]
    assert thinking["message"]["reasoning_content"] == f"I write {text}"
    assert thinking["message"]["content"] == "done"


def test_limits_of_an_answer(server: Running) -> None:
    def count(**more: Any) -> int:
        server.engine.say(Line("word " * 40, ends="max_completion_tokens" not in more))
        usage = server.post("/v1/chat/completions", chat(**more)).json()["usage"]
        return int(usage["completion_tokens"])

    whole = count()
    assert whole >= 40
    assert count(max_tokens=10**9) == whole
    assert count(max_completion_tokens=5) == 5
    assert count(max_completion_tokens=7, max_tokens=3) == 7
    missing = server.post("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]})
    assert missing.status_code == 400
    assert "max_tokens" in missing.json()["error"]["message"]


def test_ollama_lines(server: Running) -> None:
    server.engine.say("hm</think>Sure." + CALL4)
    body = {"model": "scripted:latest", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL], "think": True}
    pieces = b"".join(server.stream("/api/chat", {**body, "keep_alive": "5m"}))
    *lines, last = [loads(line) for line in pieces.decode().splitlines()]
    assert "".join(line["message"].get("thinking", "") for line in lines) == "hm"
    assert "".join(line["message"]["content"] for line in lines) == "Sure."
    (calls,) = [line["message"]["tool_calls"] for line in lines if "tool_calls" in line["message"]]
    assert calls[0]["function"]["arguments"] == {"place": "Oslo", "days": 2}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert all(isinstance(last[key], int) for key in ("eval_count", "prompt_eval_count", "total_duration"))
    assert last["model"] == "scripted:latest"
    assert server.get("/api/tags").json()["models"][0]["name"] == "scripted"
    shown = server.post("/api/show", {"name": "scripted"}).json()
    assert shown["model_info"][f"{shown['model_info']['general.architecture']}.context_length"] > 0
    refused = server.post("/api/embed", {"model": "scripted", "input": "x"})
    assert (refused.status_code, list(refused.json())) == (501, ["error"])


def test_several_prompts_in_one_request(server: Running) -> None:
    server.engine.say("one", "two", "three", "one", "two", "three")
    body = {"prompt": ["a", "b", "c"], "max_tokens": 5}
    texts = [choice["text"] for choice in server.post("/v1/completions", body).json()["choices"]]
    assert texts == ["one", "two", "three"]
    streamed: dict[int, str] = {}
    for event in chunks(server, body, "/v1/completions")[:-1]:
        for choice in event["choices"]:
            streamed[choice["index"]] = streamed.get(choice["index"], "") + choice["text"]
    assert streamed == dict(enumerate(texts))


def test_scoring_a_prompt(server: Running) -> None:
    ids = server.post("/tokenize", {"content": "Once upon a time"}).json()["tokens"]
    server.engine.say("x")
    body = {"prompt": [ids], "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1}
    logprobs = server.post("/v1/completions", body).json()["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(ids) + 1
    assert logprobs["token_logprobs"][0] is None


def test_a_prompt_too_long_is_told_in_the_words_that_agents_look_for() -> None:
    engine = ScriptedEngine(tiny_tokenizer(), context=50)
    message = [{"role": "user", "content": "word " * 60}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": message, "stream": True},
        "/v1/messages": {"messages": message, "max_tokens": 5, "stream": True},
        "/v1/responses": {"input": "word " * 60, "stream": True},
        "/v1/completions": {"prompt": "word " * 60},
        "/api/chat": {"model": "scripted", "messages": message},
    }
    with running(engine) as server:
        for path, body in bodies.items():
            answer = server.post(path, body)
            error = answer.json()["error"]
            said = error if isinstance(error, str) else error["message"]
            found = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum", said)
            assert answer.status_code == 400, path
            assert found, said
            assert int(found[1]) > int(found[2]) == 50
            if path.startswith("/v1") and path != "/v1/messages":
                assert error["code"] == "context_length_exceeded", path
        just = [1] * 50
        edge = server.post("/v1/completions", {"prompt": just}).json()["error"]["message"]
        assert edge.startswith("prompt is too long: 50 tokens > 49 maximum"), "an answer needs room, too"


def test_what_is_ignored_is_said_once_and_by_name(server: Running) -> None:
    def said() -> list[str]:
        return [line for line in server.lines if "ignored" in line]

    tools = [{"type": "function", **TOOL["function"]}, {"type": "web_search"}]  # type: ignore[dict-item]
    before = len(said())
    for count in (1, 2):
        server.engine.say("ok")
        body = {"input": "Hi", "tools": [*tools, *[{"type": "mcp"}] * (count - 1)]}
        assert server.post("/v1/responses", body).status_code == 200
    web, other = said()[before:]
    assert web.startswith("/v1/responses: the field 'tools[] (web_search)'")
    assert other.startswith("/v1/responses: the field 'tools[] (mcp)'")


# ---- the server's own


def test_native_endpoints(server: Running) -> None:
    assert server.get("/").status_code == 200
    assert server.client.head(server.url + "/").status_code == 200
    assert server.get("/health").json()["status"] == "ok"
    assert server.get("/v1/models/scripted").json()["max_model_len"] == server.engine.context
    ids = server.post("/tokenize", {"content": "a fox", "with_pieces": True}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": [t["id"] for t in ids]}).json()["content"] == "a fox"
    template = server.post("/apply-template", chat("Hi there", thinking={"type": "disabled"})).json()
    assert template["prompt"].endswith("<｜User｜>Hi there<｜Assistant｜></think>")
    assert server.post("/tokenize", chat("Hi there")).json()["tokens"] == template["tokens"]
    assert server.get("/slots").json() == []
    text = server.get("/metrics").text
    assert "finback_requests_total{" in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0
    assert server.get("/props").json()["n_ctx"] == server.engine.context
    assert set(server.get("/prefix-cache").json()) == {"prefix", "disk", "replay", "memory"}
    assert server.get("/tokenizer_info").json()["eos_token"] == "<｜end▁of▁sentence｜>"


def test_thinking_is_stopped_from_outside() -> None:
    engine = ScriptedEngine(tiny_tokenizer())
    with running(engine) as server:
        engine.say(Line("think " * 400 + "</think>done", gap=0.01))
        body = chat(thinking={"type": "enabled"}, stream=True)
        with server.client.stream("POST", server.url + "/v1/chat/completions", json=body, timeout=30) as answer:
            id, text, stopped = answer.headers["x-request-id"], "", False
            for piece in answer.iter_text():
                text += piece
                if not stopped and "think" in text:
                    stopped = httpx2.post(server.url + "/stop-thinking", json={"id": id}).json()["stopped"]
        _, said, _, _ = joined([data for _, data in sse_events([text.encode()])])
        assert (said, stopped) == ("done", True)
        assert server.post("/stop-thinking", {"id": "nobody"}).status_code == 404


def test_paths_and_models_that_are_none(server: Running) -> None:
    for path, method in (("/v1/nothing", "GET"), ("/v1/chat/completions", "GET"), ("/api/nothing", "POST")):
        answer = server.client.request(method, server.url + path)
        assert answer.status_code in (404, 405)
        assert "error" in answer.json()
    other = server.post("/v1/chat/completions", {**chat(), "model": "gpt-9"})
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert server.post("/v1/messages", {"model": "x", "max_tokens": 5, "messages": []}).json()["type"] == "error"


# ---- bodies that are not what they claim

BODIES: dict[str, tuple[bytes, dict[str, str]]] = {
    "cut inside a character": ('{"a": "é"}'.encode()[:-3], {}),
    "another encoding": ('{"messages": "你好"}'.encode("gbk"), {}),
    "a lone surrogate": (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', {}),
    "deep": (b"[" * 100_000, {}),
    "blanks": (b" " * 2_000_000, {}),
    "empty": (b"", {}),
    "a list": (b"[]", {}),
    "a form": (b"a=b", {"content-type": "application/x-www-form-urlencoded"}),
    "text": (b"{}", {"content-type": "text/plain"}),
    "packed": (b"\x1f\x8b\x08\x00", {}),
    "said to be packed": (b"{}", {"content-encoding": "gzip"}),
    "a long number": (b'{"max_tokens": ' + b"9" * 10_000 + b"}", {}),
    "another charset": (b"{}", {"content-type": "application/json; charset=latin-1"}),
    "not a number": (b'{"temperature": NaN}', {}),
    "more than one": (b"{} {}", {}),
    "nothing known": (b'{"secret-word": 1}', {}),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses", "/tokenize"])
def test_bad_bodies(server: Running, kind: str, path: str) -> None:
    body, headers = BODIES[kind]
    answer = server.client.post(server.url + path, content=body, headers={"content-type": "application/json"} | headers)
    assert answer.status_code in (400, 413, 415), answer.text
    assert "error" in loads(answer.content.decode("utf-8", "strict"))
    assert "secret-word" not in answer.text
    assert "Traceback" not in answer.text


def test_bodies_that_are_too_large() -> None:
    with running(settings=Settings(Defaults(thinking=False), body_limit=100_000)) as server:
        large = chat("x" * 200_000)
        answer = server.post("/v1/chat/completions", large)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        chunked = server.client.post(
            server.url + "/v1/chat/completions",
            content=iter([b'{"a": "'] + [b"x" * 10_000] * 20),
            headers={"content-type": "application/json"},
        )
        assert chunked.status_code == 413
        assert server.post("/v1/chat/completions", chat()).status_code == 200


def connected(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=20)


def test_half_a_body_times_out() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with running(settings=Settings(body_seconds=0.3)) as server, connected(server) as sock:
        sock.sendall(head + b"Content-Length: 100\r\n\r\n{")
        assert sock.recv(4096).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    ],
    ids=["TLS", "a header without a colon", "a bad size of a chunk", "a negative length"],
)
def test_what_is_no_http(server: Running, sent: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(sent)
        answer = b""
        while piece := sock.recv(10_000):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert "error" in loads(body.decode())


def test_half_a_head_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finback.server.host.HEAD_SECONDS", 0.3)
    with running() as server:
        for sent in (b"", b"POST /v1/chat/comp", b"GET / HTTP/1.1\r\nHost: loc"):
            with connected(server) as sock:
                sock.sendall(sent)
                assert sock.recv(100) == b""


# ---- under load


def test_a_sign_of_life_while_nothing_is_said() -> None:
    """While the prompt is read, while a call is held back, and in the queue."""
    engine = ScriptedEngine(tiny_tokenizer(), slots=1)
    held = CALL4[:60]
    with running(engine, settings=Settings(Defaults(thinking=False), ping=0.1)) as server:
        engine.say(Line("Hi", reading=0.7), Line("Hi"), Line(held, gap=0.05))
        got: dict[str, list[tuple[float, bytes]]] = {}

        def ask(name: str, path: str, body: dict[str, Any]) -> None:
            begun = time.monotonic()
            with httpx2.stream("POST", server.url + path, json={**body, "stream": True}, timeout=30) as answer:
                got[name] = [(time.monotonic() - begun, b"")]
                got[name] += [(time.monotonic() - begun, piece) for piece in answer.iter_raw()]

        anthropic = {"model": "scripted", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
        threads = [
            threading.Thread(target=ask, args=args)
            for args in (
                ("reading", "/v1/chat/completions", chat()),
                ("queue", "/v1/messages", anthropic),
                ("held", "/v1/chat/completions", chat(tools=[TOOL])),
            )
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
        for thread in threads:
            thread.join()
    for name, pieces in got.items():
        assert pieces[0][0] < 1, f"{name}: headers at once"
        times = [at for at, _ in pieces]
        assert max(b - a for a, b in itertools.pairwise(times)) < 0.6, name
        body = b"".join(piece for _, piece in pieces)
        pings = body.count(b": still working\n\n") + body.count(b"event: ping")
        assert pings >= 3, (name, body)
        sse_events([body])


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves(stream: bool) -> None:
    """Its request ends at once, and the next has its place."""
    engine = ScriptedEngine(tiny_tokenizer(), slots=1)
    with running(engine) as server:
        engine.say(Line("never", reading=30, chunks=300), Line("next"))
        if stream:
            with httpx2.stream("POST", server.url + "/v1/chat/completions", json=chat(stream=True)) as answer:
                next(answer.iter_raw())
        else:
            with pytest.raises(httpx2.ReadTimeout):
                httpx2.post(server.url + "/v1/chat/completions", json=chat(), timeout=0.5)
        begun = time.monotonic()
        assert server.post("/v1/chat/completions", chat()).json()["choices"][0]["message"]["content"] == "next"
        assert time.monotonic() - begun < 5
        server.settled()
        assert any("client gone" in line or " 499 " in line for line in server.lines)


def test_a_client_that_leaves_the_queue_never_runs() -> None:
    engine = ScriptedEngine(tiny_tokenizer(), slots=1)
    with running(engine, queue=2) as server:
        engine.say(Line("first", reading=1.0, chunks=10), Line("second"), Line("third"))
        found: list[httpx2.Response] = []
        threads = [
            threading.Thread(target=lambda: found.append(httpx2.post(server.url + "/v1/chat/completions", json=chat())))
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.2)
        with contextlib.suppress(httpx2.ReadTimeout):
            httpx2.post(server.url + "/v1/chat/completions", json=chat(), timeout=0.2)
        for thread in threads:
            thread.join()
        server.settled()
        assert [answer.status_code for answer in found] == [200, 200]
        assert engine.runs == 2


def test_a_full_queue_says_when_to_come_again() -> None:
    engine = ScriptedEngine(tiny_tokenizer(), slots=1)
    with running(engine, queue=2) as server:
        engine.say(*[Line("x", reading=0.8, chunks=8)] * 3)
        threads = [threading.Thread(target=lambda: server.post("/v1/chat/completions", chat())) for _ in range(3)]
        for thread in threads:
            thread.start()
            time.sleep(0.15)
        refused = httpx2.post(server.url + "/v1/chat/completions", json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert httpx2.get(server.url + "/health").json()["waiting"] == 2
        for thread in threads:
            thread.join()


def test_a_request_that_takes_too_long() -> None:
    with running(settings=Settings(Defaults(thinking=False), deadline=0.3, ping=10)) as server:
        server.engine.say(Line("x " * 500, gap=0.05), Line("x " * 500, gap=0.05))
        late = server.post("/v1/chat/completions", chat())
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        *_, error, done = chunks(server, chat())
        assert (error["error"]["code"], done) == ("deadline_exceeded", "[DONE]")
        server.settled()


def test_one_bad_request_never_affects_another(server: Running) -> None:
    server.engine.say(Line("good " * 30, gap=0.01))
    good: list[httpx2.Response] = []
    thread = threading.Thread(target=lambda: good.append(server.post("/v1/chat/completions", chat())))
    thread.start()
    for bad in ({"temperature": "hot"}, {"messages": []}, {"response_format": {"type": "yaml"}}):
        assert httpx2.post(server.url + "/v1/chat/completions", json=chat(**bad)).status_code == 400
    thread.join()
    assert good[0].json()["choices"][0]["message"]["content"] == "good " * 30


def test_the_model_is_let_go_of_and_comes_back() -> None:
    with running() as server:
        first = server.engine
        server.post("/api/generate", {"model": "scripted", "keep_alive": 0})
        for _ in range(200):
            if server.get("/health").json()["state"] == "unloaded":
                break
            time.sleep(0.01)
        assert server.get("/api/ps").json() == {"models": []}
        assert server.post("/v1/chat/completions", chat()).status_code == 200
        assert server.engine is not first
        assert server.get("/health").json()["state"] == "loaded"


def test_lines_hold_no_word_of_anybody(server: Running) -> None:
    server.engine.say("a-secret-answer")
    server.post("/v1/chat/completions", chat("a-secret-question"))
    assert not any("secret" in line for line in server.lines)
    assert any("/v1/chat/completions prompt" in line for line in server.lines)
