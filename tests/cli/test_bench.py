"""`finback bench`: tables, records, charts, comparisons, errors. In this process, for starting one costs more than what
is tested; tests/cli/test_commands.py covers what a process adds."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from finback.cli.main import cli
from finback.errors import FinbackError

TINY = ("--bytes", "16MiB", "--seconds", "0", "--shape", "64x512")


def ok(*args: str) -> str:
    done = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_kernels_as_a_record_and_a_chart(tmp_path: Path) -> None:
    chart = tmp_path / "k.svg"
    args = ("--format", "MXFP4,BF16", "--threads", "1,2", "--rows", "1,2", "--layout", "mapped", "--plot", str(chart))
    record = json.loads(ok("bench", "kernels", *TINY, *args, "--json"))
    assert {"machine", "rows", "commit", "version", "level", "arithmetic_version", "date"} <= set(record)
    names = {(row["format"], row["layout"], *row["shape"], row["rows"], row["threads"]) for row in record["rows"]}
    assert names == {(f, "mapped", 64, 512, n, t) for f in ("MXFP4", "BF16") for n in (1, 2) for t in (1, 2)}
    for row in record["rows"]:
        assert {"gbps", "read_gbps", "share", "gflops"} <= set(row)
    assert ET.parse(chart).getroot().tag.endswith("svg")


def test_kernels_as_a_table() -> None:
    text = ok("bench", "kernels", *TINY, "--format", "Q8_0", "--threads", "1", "--isa", "scalar")
    assert "level scalar" in text
    table = [line.split() for line in text.splitlines() if line.startswith("Q8_0")]
    assert [line[:5] for line in table if line[1] == "mapped"] == [["Q8_0", "mapped", "64x512", "1", "1"]]
    experts = ok("bench", "kernels", *TINY, "--format", "BF16", "--layout", "resident", "--experts", "2")
    assert "64x512 x2    12" in experts


def test_what_has_no_kernel_is_said() -> None:
    from finback import native

    report = json.loads(ok("bench", "kernels", *TINY, "--isa", "scalar", "--layout", "resident", "--json"))
    lacking = {name for name, f in native.Format.__members__.items() if native.why_no_kernel("scalar", f, True)}
    assert {row["format"] for row in report["skipped"]} == lacking
    assert {row["format"] for row in report["rows"]} == set(native.Format.__members__) - lacking
    assert report["rows"]


def test_steps_and_comparison(tmp_path: Path) -> None:
    args = ("bench", "decode", "--depth", "0,300", "--tokens", "2", "--repeats", "2", "--threads", "1")
    record = ok(*args, "--json", "--plot", str(tmp_path / "d.svg"))
    (tmp_path / "a.json").write_text(record)
    rows = json.loads(record)["rows"]
    assert [row["depth"] for row in rows] == [0, 300]
    assert 0.97 < rows[1]["memory"]["held"] / rows[1]["memory"]["formula"] < 1.05
    text = ok("bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"))
    assert "depth 300 2 tokens 1 thread" in text
    assert text.count("1.000  same") == 2
    result = json.loads(ok("bench", "compare", str(tmp_path / "a.json"), str(tmp_path / "a.json"), "--json"))
    assert [ratio["ratio"] for ratio in result["ratios"]] == [1.0, 1.0]
    table = ok("bench", "prefill", "--sizes", "2,5", "--depth", "10", "--repeats", "1", "--threads", "1")
    assert [line.split()[:3] for line in table.splitlines()[2:]] == [["2", "10", "1"], ["5", "10", "1"]]
    assert ET.parse(tmp_path / "d.svg").getroot().tag.endswith("svg")


def test_help_teaches() -> None:
    assert "finback bench compare before.json after.json" in ok("bench", "--help")
    for name in ("kernels", "decode", "prefill", "startup", "compare"):
        assert f"finback bench {name}" in ok("bench", name, "--help")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["kernels", "--format", "Q9_9"], "format is 'Q9_9'"),
        (["kernels", "--format", ","], "at least one"),
        (["kernels", "--shape", "64"], "give ROWSxCOLS"),
        (["kernels", "--format", "Q4_K", "--shape", "16x100"], "a row of 100 values"),
        (["kernels", "--rows", "0"], "rows is 0"),
        (["kernels", "--rows", "many"], "'many' is no whole number"),
        (["kernels", "--bytes", "1KiB"], "fit the caches"),
        (["kernels", "--bytes", "much"], "bytes is 'much'"),
        (["kernels", "--bytes", "900TiB"], "weights needs"),
        (["kernels", "--isa", "mmx"], "mmx"),
        (["decode", "-m", "nowhere.gguf"], "nowhere.gguf"),
        (["decode", "--depth", "99999999"], "context is"),
        (["decode", "--depth", "500", "--context", "100"], "raise --context"),
        (["prefill", "--sizes", "0"], "at least 1 token"),
        (["startup", "-m", "nowhere.gguf"], "nowhere.gguf"),
        (["compare", "nowhere.json", "nowhere.json"], "nowhere.json"),
        (["kernels", *TINY, "--format", "F32", "--plot", "no/such/folder.svg"], "folder.svg"),
    ],
)
def test_errors_are_one_sentence(args: list[str], message: str) -> None:
    with pytest.raises((FinbackError, click.ClickException)) as caught:
        cli.main(["bench", *args], standalone_mode=False)
    assert caught.value.exit_code == 2
    assert message in str(caught.value)
