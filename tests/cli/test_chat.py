"""`finback chat`: turns, commands and files through pipes, prompts and Ctrl-C on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import finback
from finback.cli.chat import read_text
from finback.errors import RequestError
from finback.tools.conversation import Conversation, ThinkingSplit

NORWAY = "What is the capital of Norway?"
OSLO = "The capital of Norway is Oslo."


def chat(text: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "finback.cli.main", "chat", "--temp", "0", *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | env,
        check=False,
    )


def test_lines_of_a_pipe_are_turns() -> None:
    done = chat(f"{NORWAY}\n\n   \n/stats\n{NORWAY}\n")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (OSLO, OSLO)
    assert "tokens of 32768" in lines[1]
    assert "0 of them kept" in lines[2]
    assert "prefix: nothing kept begins like this prompt" in lines[3]


def test_commands_that_are_mistyped_are_not_sent() -> None:
    typed = "/sav x\n/nonsense\n/think maybe\n/save\n/load\n/load nowhere.json\n/regen\n/undo\n//hello\n/quit\nnever\n"
    done = chat(typed)
    assert done.returncode == 0
    assert "no command /sav; did you mean /save?" in done.stderr
    assert "no command /nonsense; /help lists them" in done.stderr
    assert "/think takes on, off" in done.stderr
    assert "nowhere.json: No such file" in done.stderr
    assert "there is no question yet" in done.stderr
    assert done.stdout.count("\n") == 2, "undo says that there is nothing, //hello is answered, and after /quit nothing"


def test_think_system_regen_undo_clear_help() -> None:
    typed = ["/help", "/system", "/system Be brief.", "/system", "/think on", NORWAY, "/regen", "/think off", "/undo"]
    done = chat("\n".join([*typed, "/clear", "/stats", ""]))
    assert done.stderr == ""
    assert "/save[!] FILE" in done.stdout
    assert "there is no system message\nBe brief.\n" in done.stdout
    assert done.stdout.count("Oslo.\n") >= 2
    assert "</think>" not in done.stdout
    assert f"taken back: {NORWAY}" in done.stdout


def test_saved_and_loaded(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    first = chat(f"/think on\n{NORWAY}\n/save {file}\n/save {file}\n/save! {file}\n")
    assert f"{file} exists; give another name, or /save!" in first.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    record = json.loads(file.read_text())
    assert (record["format"], record["version"], record["thinking"]) == ("finback-chat", 1, True)
    assert [turn["role"] for turn in record["messages"]] == ["user", "assistant"]
    assert record["messages"][1]["content"] == OSLO
    assert record["messages"][1]["reasoning_content"]
    with finback.load() as engine:
        conversation = Conversation()
        assert conversation.load(file) == record["tokens"] == conversation.tokens(engine)
    second = chat(f"{NORWAY}\n/stats\n", "--load", str(file))
    assert f"2 messages, {len(record['tokens'])} tokens read in" in second.stdout
    assert "tokens differ" not in second.stdout
    kept = int(second.stdout.split(" of them kept")[0].split()[-1])
    assert kept >= len(record["tokens"]) - 3, second.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "x"}, "is no conversation"),
        ({"version": 2}, "has version 2; this finback reads version 1"),
        ({"messages": 5}, "messages is 5"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\] is"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].*content"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\[0\] is"),
        ({"tokens": [1, -1]}, "tokens is no list of token ids"),
        ({"tokens": [True]}, "tokens is no list of token ids"),
        ({"system": 5}, "system is 5"),
        ({"thinking": "yes"}, "thinking is 'yes'"),
        ({"sampling": {"heat": 1}}, "sampling is"),
        ({"sampling": {"temperature": -1}}, "temperature is -1"),
    ],
)
def test_files_that_are_none_are_refused_and_nothing_changes(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    record = {"format": "finback-chat", "version": 1, "system": None, "thinking": False, "effort": None}
    record |= {"sampling": {}, "messages": [], "tokens": []} | change
    file = tmp_path / "file.json"
    file.write_text(json.dumps(record))
    conversation = Conversation(system="mine")
    with pytest.raises(RequestError, match=said):
        conversation.load(file)
    assert conversation == Conversation(system="mine")


def test_files_that_are_no_json(tmp_path: Path) -> None:
    for content in (b"\xff\xfe", b"[" * 100_000, b"{", b"[]", b"null"):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(RequestError, match=r"is not JSON|is no conversation"):
            Conversation().load(tmp_path / "x")


def test_thinking_is_split_the_same_however_it_is_cut() -> None:
    text = "a < b</thin </think>c</think>d"
    for size in range(1, len(text)):
        split, parts = ThinkingSplit(True), {"thinking": "", "answer": ""}
        for start in range(0, len(text), size):
            for kind, piece in split.feed(text[start : start + size]):
                parts[kind] += piece
        for kind, piece in split.finish():
            parts[kind] += piece
        assert parts == {"thinking": "a < b</thin ", "answer": "c</think>d"}
    split = ThinkingSplit(True)
    assert [*split.feed("never</thi"), *split.finish()] == [("thinking", "never"), ("thinking", "</thi")]


def test_a_full_conversation_says_so_and_lives_on() -> None:
    done = chat(f"{NORWAY}\n{'word ' * 400}\n{NORWAY}\n", "--context", "200")
    assert "leaves no room for an answer in a context of 200" in done.stderr
    assert "/undo and /clear make room" in done.stderr
    assert done.stdout.count(OSLO) == 2


def test_lines_are_joined() -> None:
    def said(*typed: str) -> str | None:
        rest: Iterator[str] = iter(typed)
        return read_text(lambda _: next(rest, None))

    assert said("one") == "one"
    assert said("one\\", "two\\", "three") == "one\ntwo\nthree"
    assert said("one\\") == "one\n"
    assert said('"""', "one", "", 'two"""') == "one\n\ntwo"
    assert said('"""one"""') == "one"
    assert said('"""one', "two") == "one\ntwo"
    assert said() is None


# ---- a terminal


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, home: Path, *args: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's job in the background has it ignored
            os.environ |= {"XDG_STATE_HOME": str(home), "TERM": "dumb"}
            os.execv(sys.executable, [sys.executable, "-m", "finback.cli.main", "chat", "--temp", "0", *args])
        self.text = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    break
        assert text in self.text, self.text
        self.text = self.text.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt(self) -> None:
        """Ctrl-C at a prompt: a little after it shows, because Python's readline does not see a signal that comes
        before it waits for keys."""
        time.sleep(0.5)
        self.type("\x03")

    def end(self) -> int:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
                except OSError:
                    continue
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"the chat does not end: {self.text}")


def test_on_a_terminal(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.wait_for("/help lists commands")
    terminal.wait_for(">>> ")
    terminal.type(NORWAY + "\r")
    terminal.wait_for(OSLO)
    terminal.wait_for(">>> ")
    terminal.interrupt()
    terminal.wait_for("Ctrl-C once more")
    terminal.wait_for(">>> ")
    terminal.type(NORWAY + "\r")
    terminal.wait_for(OSLO)
    terminal.wait_for(">>> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    history = tmp_path / "finback" / "chat_history"
    assert history.read_text().count(NORWAY) >= 1
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_stops_an_answer_and_not_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--no-history", "--ignore-eos")
    terminal.wait_for(">>> ")
    terminal.type("Tell me a story about a fox.\r")
    terminal.wait_for("fox")
    terminal.wait_for(" ")
    terminal.type("\x03")
    terminal.wait_for(">>> ")
    terminal.type(f"/save {tmp_path}/talk.json\r")
    terminal.wait_for("saved 2 messages")
    terminal.wait_for(">>> ")
    terminal.interrupt()
    terminal.wait_for(">>> ")
    terminal.interrupt()
    assert terminal.end() == 0
    record = json.loads((tmp_path / "talk.json").read_text())
    assert record["messages"][1]["content"], "what was said stays"
    assert len(record["messages"][1]["content"]) < 60_000
    assert not (tmp_path / "finback").exists()
