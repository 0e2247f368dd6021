"""Records of benchmarks: statistics, names of rows, reading back, comparing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import finback
from finback.errors import RequestError
from finback.tools.compare import compare
from finback.tools.record import commit, measured, new_record, quartiles, read_record


def kernels(gbps: float, spread: tuple[float, float], **changes: Any) -> dict[str, Any]:
    row = {"format": "Q8_0", "layout": "mapped", "shape": [64, 64], "rows": 1, "threads": 2}
    return row | {"gbps": gbps, "gbps_spread": list(spread)} | changes


def test_median_and_quartiles() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([5.0, 1.0, 2.0, 4.0, 3.0]) == (2.0, 3.0, 4.0)
    assert measured("ms", [1.0, 2.0]) == {"ms": 1.5, "ms_spread": [1.25, 1.75]}
    assert measured("ms", [1 / 3]) == {"ms": 0.33333, "ms_spread": [0.33333, 0.33333]}


def test_a_record_says_where_it_comes_from(tmp_path: Path) -> None:
    record = new_record("kernels", "scalar", [kernels(1.0, (0.9, 1.1))], skipped=[])
    assert record["version"] == finback.__version__
    assert record["arithmetic_version"] == finback.ARITHMETIC_VERSION
    assert record["level"] == "scalar"
    assert set(record["machine"]) == {"cpu", "cpus", "cores", "memory_gib", "system"}
    assert record["date"].endswith("+00:00")
    (tmp_path / "a.json").write_text(json.dumps(record))
    assert read_record(tmp_path / "a.json") == record


def test_a_commit_is_that_of_our_own_checkout(tmp_path: Path) -> None:
    def git(*args: str) -> None:
        author = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *args], check=True, capture_output=True)

    assert commit(tmp_path) is None
    git("init")
    (tmp_path / "record.py").write_text("1")
    assert commit(tmp_path) is None  # somebody else's repository
    git("add", ".")
    git("commit", "-m", "x")
    name = commit(tmp_path)
    assert name is not None
    assert len(name) == 12
    (tmp_path / "record.py").write_text("2")
    assert commit(tmp_path) == f"{name}+changes"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "no benchmark record"),
        ('{"kind": "dreams", "rows": []}', "kind 'dreams'"),
        ('{"kind": "decode"}', "no benchmark record"),
        ('{"kind": "decode", "rows": [1]}', "no objects"),
    ],
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(RequestError, match=message) as caught:
        read_record(tmp_path / "bad.json")
    assert "bad.json" in str(caught.value)


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="No such file"):
        read_record(tmp_path / "none.json")


def of(*rows: dict[str, Any], kind: str = "kernels", **head: Any) -> dict[str, Any]:
    return {"kind": kind, "level": "avx2", "rows": list(rows)} | head


@pytest.mark.parametrize(
    ("b", "spread", "verdict"),
    [(12.0, (11.5, 12.5), "better"), (8.0, (7.5, 8.5), "worse"), (11.0, (10.4, 11.6), "same")],
)
def test_a_difference_is_more_than_noise_when_quartiles_do_not_overlap(
    b: float, spread: tuple[float, float], verdict: str
) -> None:
    result = compare(of(kernels(10.0, (9.5, 10.5))), of(kernels(b, spread)))
    (ratio,) = result.ratios
    assert ratio.ratio == pytest.approx(b / 10)
    assert ratio.verdict == verdict
    assert result.differences == ()


def test_milliseconds_are_better_when_they_are_less() -> None:
    slow, fast = ({"what": "x", "ms": ms, "ms_spread": [ms, ms]} for ms in (2.0, 1.0))
    verdicts = [r.verdict for r in compare(of(slow, kind="startup"), of(fast, kind="startup")).ratios]
    assert verdicts == ["better"]


def test_rows_of_one_record_and_other_differences_are_listed() -> None:
    a = of(kernels(1.0, (1.0, 1.0)), kernels(1.0, (1.0, 1.0), rows=64))
    b = of(kernels(1.0, (1.0, 1.0)), kernels(1.0, (1.0, 1.0), threads=1), level="scalar")
    result = compare(a, b)
    assert result.differences == (("level", "avx2", "scalar"),)
    assert result.only_a == ("Q8_0 mapped 64x64 64 rows 2 threads",)
    assert result.only_b == ("Q8_0 mapped 64x64 1 row 1 thread",)
    assert len(result.ratios) == 1
    assert json.loads(json.dumps(result.as_dict()))["only_a"] == list(result.only_a)


def test_records_of_different_kinds_are_not_compared() -> None:
    with pytest.raises(RequestError, match="kernels and of decode"):
        compare(of(), of(kind="decode"))
