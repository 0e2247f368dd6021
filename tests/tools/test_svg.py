"""Charts: well-formed XML whose marks lie inside it, with every label, whatever the labels hold."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from finback.errors import RequestError
from finback.tools import svg
from finback.tools.plot import plot

SVG = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    root = ET.fromstring(text)
    assert root.tag == f"{SVG}svg"
    width = float(root.attrib["width"])
    for element in root.iter():
        for name in ("x", "x1", "x2", "cx"):
            assert 0 <= float(element.attrib.get(name, 0)) <= width
        for name in ("y", "y1", "y2", "cy", "width", "height"):
            assert float(element.attrib.get(name, 0)) >= 0
    return root


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_bars_have_their_lengths_and_labels() -> None:
    bars = [svg.Bar("a <b> & c", 10.0, 9.0, 11.0, 20.0), svg.Bar("d", 5.0, 5.0, 5.0)]
    root = parsed(svg.draw([svg.Bars("title", "GB/s", bars, "limit")]))
    widths = [float(r.attrib["width"]) for r in root.iter(f"{SVG}rect")][1:]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert {"title", "a <b> & c", "d"} <= set(texts(root))
    assert any("GB/s" in t and "limit" in t for t in texts(root))


def test_lines_go_through_their_points() -> None:
    points = [svg.Point(x, y, y - 1, y + 1) for x, y in ((1024, 8.0), (65536, 4.0), (4096, 6.0))]
    root = parsed(svg.draw([svg.Lines("t", "tokens", "tokens/s", [("2 threads", points)])]))
    (line,) = root.iter(f"{SVG}polyline")
    xs, ys = zip(*(map(float, pair.split(",")) for pair in line.attrib["points"].split()), strict=True)
    assert list(xs) == sorted(xs)
    assert list(ys) == sorted(ys)  # down the page: slower
    assert xs[1] - xs[0] == pytest.approx((xs[2] - xs[0]) / 3, abs=0.2)  # two of six doublings
    assert "tokens (logarithmic)" in texts(root)
    assert {"1024", "4096", "65536", "2 threads", "tokens/s"} <= set(texts(root))


def test_an_axis_that_holds_zero_is_linear() -> None:
    points = [svg.Point(x, 1.0, 1.0, 1.0) for x in (0, 1000)]
    assert "x" in texts(parsed(svg.draw([svg.Lines("t", "x", "y", [("s", points)])])))
    parsed(svg.draw([svg.Lines("t", "x", "y", [("s", points[:1])])]))


@pytest.mark.parametrize("high", [0.0, 0.003, 0.7, 1.0, 9.99, 10.0, 41.0, 12345.0])
def test_ticks_are_round_and_reach_the_top(high: float) -> None:
    at = svg.ticks(high)
    assert at[0] == 0
    assert at[-1] >= high * 0.999
    assert 2 <= len(at) <= 9
    assert all(len(f"{t:g}") <= 6 for t in at)


def record(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": kind, "machine": {"cpu": "cpu"}, "level": "avx2", "version": "1", "rows": rows}


def test_every_kind_of_record_has_a_chart() -> None:
    kernel = {"format": "Q8_0", "layout": "mapped", "shape": [64, 64], "threads": 2, "gbps": 10.0, "gflops": 40.0}
    kernel |= {"gbps_spread": [9.0, 11.0], "read_gbps": 20.0}
    root = parsed(plot(record("kernels", [kernel | {"rows": 1}, kernel | {"rows": 64}])))
    assert any(t.startswith("One row") for t in texts(root))
    assert any(t.startswith("Many rows") for t in texts(root))
    assert "40" in texts(root)
    rate = {"tokens_per_s": 3.0, "tokens_per_s_spread": [2.0, 4.0], "threads": 1}
    assert "1 thread" in texts(parsed(plot(record("decode", [rate | {"depth": 0}, rate | {"depth": 99}]))))
    assert "size 64 depth 0 1 thread" in texts(parsed(plot(record("prefill", [rate | {"size": 64, "depth": 0}]))))
    assert "x" in texts(parsed(plot(record("startup", [{"what": "x", "ms": 1.0, "ms_spread": [1.0, 1.0]}]))))


def test_nothing_is_no_chart() -> None:
    with pytest.raises(RequestError, match="nothing to plot"):
        plot(record("kernels", []))
