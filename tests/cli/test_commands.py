"""Commands as people run them: real processes, their output, their errors, their exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import finback

FOX = "Tell me a story about a fox and a silver bell."


def run(*args: str, text: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "finback.cli.main", *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
        check=False,
    )


def ok(*args: str, text: str | None = None) -> str:
    done = run(*args, text=text)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "" or "--stats" in args
    return done.stdout


def test_run_is_the_engine() -> None:
    with finback.load() as engine:
        answer = engine.generate([{"role": "user", "content": FOX}], finback.Sampling(seed=1, max_tokens=40))
    assert ok("run", "-p", FOX, "--seed", "1", "--max-tokens", "40") == answer.text + "\n"
    assert ok("run", "--seed", "1", "--max-tokens", "40", text=FOX) == answer.text + "\n"


def test_run_from_a_file_with_all_settings(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(FOX)
    args = ["-f", str(tmp_path / "prompt.txt"), "--temp", "0.5", "--top-p", "0.9", "--top-k", "20", "--min-p", "0.01"]
    args += ["--seed", "3", "--max-tokens", "12", "--system", "Be brief.", "--threads", "1", "--context", "512"]
    first = ok("run", *args, "--memory", "1GiB", "--isa", "scalar", "--prefill-chunk", "7")
    assert first == ok("run", *args)


def test_raw_text_and_thinking() -> None:
    assert ok("run", "--raw", "--temp", "0", "--max-tokens", "8", "-p", "The Owl and the Old Map").strip()
    assert "</think>" in ok("run", "--think", "--temp", "0", "-p", "What is the capital of Norway?")
    assert run("run", "--raw", "--think", "-p", "x").returncode == 2


def test_stats_go_to_stderr() -> None:
    done = run("run", "-p", FOX, "--temp", "0", "--max-tokens", "5", "--stats")
    assert "answer 5 tokens" in done.stderr
    assert "weights" in done.stderr
    assert "tokens/s" not in done.stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["run", "-m", "nowhere.gguf", "-p", "x"], 2, "nowhere.gguf"),
        (["run", "-p", "x", "--temp", "-1"], 2, "temperature is -1"),
        (["run", "-p", "x", "--max-tokens", "0"], 2, "max_tokens is 0"),
        (["run", "-p", "x", "--threads", "0"], 2, "threads is 0"),
        (["run", "-p", "x", "--memory", "1MiB"], 2, "weights needs"),
        (["run", "-p", "x", "--context", "4"], 2, "context of 4"),
        (["run", "-p", "x", "--isa", "mmx"], 2, "mmx"),
        (["run", "-p", "x", "-f", "y"], 2, "not both"),
        (["run", "-f", "missing.txt"], 2, "missing.txt"),
        (["run", "-p", ""], 0, ""),
        (["run", "-p", "x", "--effort", "banana", "--think"], 2, "effort is 'banana'"),
        (["inspect", "nowhere"], 2, "nowhere"),
        (["tokenize", "-m", "nowhere", "-p", "x"], 2, "nowhere"),
        (["perplexity", "nowhere.gguf", "-"], 2, "nowhere.gguf"),
        (["perplexity", "a", "b", "c"], 2, "3 arguments"),
        (["bench", "kernels", "--format", "Q9_9"], 2, "format is 'Q9_9'"),
        (["bench", "decode", "--depth", "x"], 2, "'x' is no whole number"),
        (["frobnicate"], 2, "frobnicate"),
        (["run", "--nonsense"], 2, "nonsense"),
    ],
)
def test_errors_are_one_sentence(args: list[str], code: int, message: str) -> None:
    done = run(*args, text="")
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 500


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"ok\xff\xfe")
    done = run("run", "-f", str(tmp_path / "bad.txt"))
    assert done.returncode == 2
    assert "not UTF-8 text (byte 2)" in done.stderr


def test_inspect() -> None:
    text = ok("inspect")
    assert "Q8_0" in text
    report = json.loads(ok("inspect", "--json"))
    assert report["layers"] == {"main": 5, "window": 2, "csa": 2, "hca": 1, "mtp": 1}
    assert report["config"]["vocab_size"] == 4096
    assert "every value is finite" in ok("inspect", "--check")
    program = json.loads(ok("inspect", "--program", "--json", "--context", "512"))
    assert {row["entry"] for row in program} == {"main", "head", "mtp"}
    assert "attend" in ok("inspect", "--program", "--context", "512")


def test_check_finds_a_value_that_is_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    ok("synth", str(path), "--layers", "2", "--experts", "2", "--vocab", "320")
    from finback.formats.gguf import open_gguf

    entry = open_gguf(path).tensors["output.weight"]
    with open(path, "r+b") as file:
        file.seek(entry.offset)
        file.write(b"\x00\x7e")  # an f16 scale that is NaN
    done = run("inspect", str(path), "--check")
    assert done.returncode == 1
    assert "output.weight: 32 values are not finite" in done.stdout


def test_tokenize() -> None:
    lines = ok("tokenize", "-p", "The fox.").splitlines()
    assert [line.split()[0] for line in lines] == ok("tokenize", "--ids", "-p", "The fox.").split()
    assert json.loads(ok("tokenize", "--json", "-p", "The fox."))[0]["text"] == "The"
    assert len(ok("tokenize", "--ids", "-p", "<｜User｜>").split()) > 1
    assert len(ok("tokenize", "--ids", "--controls", "-p", "<｜User｜>").split()) == 1


def test_logprobs_and_perplexity_agree(tmp_path: Path) -> None:
    text = "Once upon a time there was a shy fox named Pip. He lived with his grandmother in a small den."
    (tmp_path / "t.txt").write_text(text)
    rows = [json.loads(line) for line in ok("logprobs", "-p", text, "--top", "2", "--json").splitlines()]
    assert rows[0]["logprob"] is None
    losses = [-row["logprob"] for row in rows[1:]]
    assert all(len(row["top"]) == 2 and row["top"][0]["logprob"] >= row["logprob"] for row in rows[1:])
    result = json.loads(ok("perplexity", str(tmp_path / "t.txt"), "--json"))
    assert result["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-6)
    assert result["tokens"] == len(losses)
    short = json.loads(ok("perplexity", str(tmp_path / "t.txt"), "--json", "--window", "8"))
    assert short["windows"] > 1
    assert short["tokens"] == result["tokens"]
    assert ok("logprobs", "-p", text).count("\n") == len(rows)


def test_synth_is_deterministic(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        ok("synth", str(tmp_path / name), "--layers", "2", "--experts", "2", "--vocab", "320", "--seed", "4")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    ok("run", "-m", str(tmp_path / "a.gguf"), "-p", "hi", "--temp", "0", "--max-tokens", "3")
    assert run("synth", str(tmp_path / "a.gguf")).returncode == 2
    assert run("synth", str(tmp_path / "c.gguf"), "--experts-format", "Q9_9").returncode == 2


def test_doctor() -> None:
    assert "threads" in ok("doctor")
    report = json.loads(ok("doctor", "--json"))
    assert report["arithmetic"] == finback.ARITHMETIC_VERSION
    kernels = json.loads(ok("doctor", "--kernels", "--json"))["kernels"]
    assert {"op", "format", "level", "function"} == set(kernels[0])
    assert {row["format"] for row in kernels if row["op"] == "linear"} >= {"FP8_E4M3", "MXFP4", "Q8_0", "Q4_K"}
    assert {row["format"] for row in kernels if row["op"] == "linear_tiles"} >= {"MXFP4", "Q8_0", "IQ2_XXS"}
    scalar = json.loads(ok("doctor", "--kernels", "--isa", "scalar", "--json"))["kernels"]
    assert {row["level"] for row in scalar} == {"scalar"}


def test_version_and_help() -> None:
    assert ok("--version") == f"finback {finback.__version__}\n"
    for command in ("run", "inspect", "tokenize", "logprobs", "perplexity", "synth", "bench", "doctor"):
        assert command in ok("--help")
        assert "Usage" in ok(command, "--help")


def test_ctrl_c_ends_with_130() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "finback.cli.main",
            "run",
            "-p",
            FOX,
            "--ignore-eos",
            "--threads",
            "1",
            "--isa",
            "scalar",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.read(1)  # the answer has begun
    child.send_signal(signal.SIGINT)
    try:
        _, errors = child.communicate(timeout=30)
    finally:
        child.kill()
    assert child.returncode == 130
    assert b"Traceback" not in errors


def test_a_reader_that_leaves_is_no_error() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "finback.cli.main", "run", "-p", FOX, "--ignore-eos", "--max-tokens", "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.read(1)
    child.stdout.close()
    with child.stderr as stderr:  # type: ignore[union-attr]
        assert stderr.read() == b""
    assert child.wait(60) == 1


def test_importing_finback_is_cheap() -> None:
    code = (
        "import sys, finback; heavy = ('numpy', 'tokenizers', 'click', 'finback._native'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
