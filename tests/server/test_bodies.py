"""Bodies of requests. Cases I05 and I09: what is not JSON is told so, in JSON, without a byte of it."""

from __future__ import annotations

import asyncio
import json
import random
import time
import zlib
from typing import Any

import pytest

from finback.server.ask import RefusedError
from finback.server.bodies import MAX_DEPTH, MAX_DIGITS, MAX_VALUES, ClientGoneError, parse_json, read_json
from finback.server.dialects import openai
from finback.server.wire import to_json
from tests.server.asgi import feed, raw

MIB = 1 << 20
SECRET = "sk-very-secret"


def read(receive: Any, *headers: tuple[str, str], limit: int = MIB, timeout: float = 5, idle: float = 5) -> object:
    return asyncio.run(read_json(receive, raw(headers), limit, timeout, idle))


def refusal(data: bytes) -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        parse_json(data)
    return refused.value


# ---- JSON


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a": [1, -2.5, true, false, null, "x"]}', {"a": [1, -2.5, True, False, None, "x"]}),
        (b" \t\r\n{} \n", {}),
        (b"[]", []),
        (b'"x"', "x"),
        (b"\xef\xbb\xbf{}", {}),
        (rb'{"a": "\ud83d\ude00 \u0000 \\ \" \/"}', {"a": '\U0001f600 \0 \\ " /'}),
        ('{"é": "鯨 🐋"}'.encode(), {"é": "鯨 🐋"}),
        (rb'{"a": "[[[[{{{{\\", "b": "\"]:,:{"}', {"a": "[[[[{{{{\\", "b": '"]:,:{'}),
        (b'{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}', {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}),
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, json.loads("[" * MAX_DEPTH + "]" * MAX_DEPTH)),
        (b"1" * MAX_DIGITS, int("1" * MAX_DIGITS)),
        (b'"' + b"1" * 20000 + b'"', "1" * 20000),
        (b'{"a": "' + b"[" * 20000 + b'"}', {"a": "[" * 20000}),
        (b"18446744073709551615", 2**64 - 1),
    ],
)
def test_json_is_read(data: bytes, expected: object) -> None:
    assert parse_json(data) == expected
    assert parse_json(bytearray(data)) == expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the body is empty"),
        (b" " * (20 * MIB), "the body is empty"),
        (b"\xef\xbb\xbf", "the body is empty"),
        ('{"a": "鯨"}'.encode()[:9], "the body is not UTF-8: byte 7 is wrong"),
        ('{"a": "鯨鱼"}'.encode("gbk"), "the body is not UTF-8: byte 7 is wrong"),
        ('{"a": 1}'.encode("utf-16"), "the body is not UTF-8: byte 0 is wrong"),
        (b'{"a": "\xed\xa0\x80"}', "the body is not UTF-8: byte 7 is wrong"),
        (zlib.compress(b"{}", wbits=31), "the body is compressed"),
        (rb'"\ud800"', "invalid Unicode"),
        (rb'{"a": "x\ud800y"}', "invalid Unicode"),
        (rb'{"\udc00": 1}', "invalid Unicode"),
        (rb'["\ud83d", "\ude00"]', "invalid Unicode"),
        (rb'"\ud800A"', "invalid Unicode"),
        (b"[" * 100_000, "nested deeper than 100 levels"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested deeper than 100 levels"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper than 100 levels"),
        (b'{"a": "\\\\"' + b", " + b"[" * 200, "nested deeper than 100 levels"),
        (b'{"a": 1, "b": 2, "a": 3}', "the body has the name 'a' twice in one object"),
        (b'{"x": [{"y": {"a": 1, "\\u0061": 1}}]}', "the body has the name 'a' twice in one object"),
        (b'{"%b": 1, "%b": 2}' % (b"n" * 90, b"n" * 90), "the name '" + "n" * 40 + "…' twice"),
        (b"1" * 10_000, "a number of more than 999 digits"),
        (b'{"a": -1.%b}' % (b"1234567890" * 1000), "a number of more than 999 digits"),
        (b"[1e400]", "a number beyond what 64 bits can hold"),
        (b'{"a": NaN}', "the body has NaN, which JSON does not know"),
        (b"[-Infinity]", "the body has -Infinity, which JSON does not know"),
        (b'{"a": 1,}', "the body is not JSON: it stops being some at line 1, column 9"),
        (b'{"a":\n 1', "the body is not JSON: it stops being some at line 2, column 3"),
        (b"{'a': 1}", "line 1, column 2"),
        (b"{} {}", "line 1, column 4"),
        (b"\0{}", "line 1, column 1"),
        (b"[01]", "line 1, column 3"),
        (b'["a\nb"]', "line 1, column 4"),
        (b"model=m&prompt=" + SECRET.encode(), "line 1, column 1"),
        (b'{"key": "' + SECRET.encode(), "line 1, column 9"),
        (b'"\xff' + b"1" * 2000, "the body is not UTF-8: byte 1 is wrong"),
        (b'["' + b"1" * 2000, "line 1, column 2"),
        (b"[" + b"1," * MAX_VALUES + b"1]", "more than 2,000,000 values"),
        (b"[" + b"[]," * MAX_VALUES + b"1]", "more than 2,000,000 values"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_told_without_its_bytes(data: bytes, said: str) -> None:
    began = time.perf_counter()
    refused = refusal(data)
    assert time.perf_counter() - began < 1
    assert said in str(refused)
    assert refused.status == (413 if "values" in said else 400)
    answer = to_json(openai.error_body(refused))
    assert json.loads(answer.decode("utf-8"))["error"]["message"] == str(refused)
    assert SECRET not in answer.decode()
    assert len(answer) < 400


def test_a_name_that_is_not_printable_is_told_escaped() -> None:
    assert r"'\x00\n\u202e'" in str(refusal(rb'{"\u0000\n\u202e": 1, "\u0000\n\u202e": 1}'))


def test_the_parser_agrees_with_the_slow_one() -> None:
    """Random texts near JSON: taken are those that Python's parser takes, with the same value, but for the listed."""
    draw = random.Random(5)
    base = r'{"a":[1,{"b":"x\\\"y:[,"}],"c":"\ud83d\ude00","d":{}}'
    parts = ['"a"', '"b"', *'1-.e[]{},:\\" 0é\n\0', "\\u", "d800", r"\ud83d\ude00", "null", "NaN", r"\"", "\\\\"]
    taken = 0
    for _ in range(6000):
        at = draw.randrange(len(base))
        text = base[:at] + draw.choice(parts) + base[at + draw.randint(0, 3) :]
        try:
            expected, valid = json.loads(text), True
        except ValueError:
            expected, valid = None, False
        try:
            value = parse_json(text.encode())
        except RefusedError as refused:
            allowed = any(word in str(refused) for word in ("Unicode", "twice", "NaN"))
            assert allowed or not valid, text
            if "Unicode" in str(refused):
                with pytest.raises(UnicodeEncodeError):
                    json.dumps(expected, ensure_ascii=False).encode()
        else:
            assert valid, text
            assert value == expected
            taken += 1
    assert taken > 500


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_large_bodies_are_looked_at_in_pieces(before: int) -> None:
    """Wherever a piece ends, inside a string or outside: brackets in strings do not count, and depth goes on."""
    many = b'"[",' * 100_000
    value: Any = parse_json(b"[" * before + many + b"1" + b"]" * before)
    for _ in range(before - 1):
        (value,) = value
    assert value == ["["] * 100_000 + [1]
    deep = MAX_DEPTH + 1 - before
    assert parse_json(b"[" * before + many + b"[" * (deep - 1) + b"]" * (deep - 1 + before))
    assert "deeper" in str(refusal(b"[" * before + many + b"[" * deep + b"]" * (deep + before)))


def test_a_large_body_takes_milliseconds() -> None:
    tool = {"name": "t", "parameters": {f"p{i}": {"type": "string", "description": "d" * 40} for i in range(12)}}
    body = {"tools": [tool] * 30, "messages": [{"role": "user", "content": 'Hello "w":\n [1]' * 100}] * 120}
    data = json.dumps(body).encode()
    assert len(data) > 235_000
    times = []
    for _ in range(5):
        began = time.perf_counter()
        assert parse_json(data) == body
        times.append(time.perf_counter() - began)
    assert min(times) < 0.03


# ---- bytes


@pytest.mark.parametrize("pieces", [(b'{"a": 1}',), (b'{"a"', b"", b": 1}"), (b"{", b'"a"', b":", b"1", b"", b"}")])
def test_a_body_in_pieces(pieces: tuple[bytes, ...]) -> None:
    assert read(feed(*pieces)) == {"a": 1}
    assert read(feed(*pieces), ("Content-Length", str(len(b"".join(pieces))))) == {"a": 1}


def test_a_body_cut_inside_a_character_is_whole_again() -> None:
    data = '{"a": "鯨🐋"}'.encode()
    for cut in range(len(data)):
        assert read(feed(data[:cut], data[cut:])) == {"a": "鯨🐋"}


def test_the_limit_is_exact_and_named() -> None:
    data = b'"' + b"x" * (MIB - 2) + b'"'
    assert read(feed(data), ("Content-Length", str(len(data)))) == "x" * (MIB - 2)
    with pytest.raises(RefusedError, match=r"larger than 1 MiB") as refused:
        read(feed(data, b" "))
    assert (refused.value.status, refused.value.code) == (413, "request_too_large")


@pytest.mark.parametrize("length", [str(MIB + 1), "9" * 5000])
def test_a_declared_length_is_refused_unread(length: str) -> None:
    async def receive() -> Any:
        raise AssertionError("it was read")

    with pytest.raises(RefusedError) as refused:
        read(receive, ("Content-Length", length))
    assert refused.value.status == 413


@pytest.mark.parametrize("length", ["", "-1", "1e3", "0x10", "1,1", "²"])
def test_a_length_that_is_no_number(length: str) -> None:
    with pytest.raises(RefusedError, match="Content-Length") as refused:
        read(feed(b"{}"), ("Content-Length", length))
    assert refused.value.status == 400


def test_reading_stops_at_once_when_it_is_too_much() -> None:
    taken = 0

    async def receive() -> Any:
        nonlocal taken
        taken += 1
        return {"type": "http.request", "body": b" " * 1000, "more_body": True}

    with pytest.raises(RefusedError) as refused:
        read(receive, limit=10_000)
    assert (refused.value.status, taken) == (413, 11)


@pytest.mark.parametrize(
    ("pieces", "wait", "timeout", "idle"),
    [
        ((b" ",) * 100, 0.02, 0.1, 5),  # always something, never done
        ((b"{}",), 5, 5, 0.05),  # nothing at all
        ((b"{}",), 5, 0.05, 5),
    ],
)
def test_slow_clients_are_let_go(pieces: tuple[bytes, ...], wait: float, timeout: float, idle: float) -> None:
    began = time.perf_counter()
    with pytest.raises(RefusedError, match=r"did not arrive within") as refused:
        read(feed(*pieces, wait=wait), timeout=timeout, idle=idle)
    assert (refused.value.status, refused.value.code) == (408, "request_timeout")
    assert time.perf_counter() - began < 1


def test_a_client_that_never_lets_us_wait_is_let_go_too() -> None:
    async def receive() -> Any:
        time.sleep(0.01)
        return {"type": "http.request", "body": b" ", "more_body": True}

    began = time.perf_counter()
    with pytest.raises(RefusedError) as refused:
        read(receive, timeout=0.05)
    assert refused.value.status == 408
    assert time.perf_counter() - began < 1


def test_slow_but_steady_is_fine() -> None:
    assert read(feed(*[b"1"] * 8, wait=0.02), timeout=5, idle=0.1) == 11111111


def test_a_client_that_leaves() -> None:
    with pytest.raises(ClientGoneError):
        read(feed(b'{"a"', then=[{"type": "http.disconnect"}]))


def test_cancelling_is_no_timeout() -> None:
    async def run() -> None:
        task = asyncio.create_task(read_json(feed(b"{}", wait=5), [], MIB, 5))
        await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
