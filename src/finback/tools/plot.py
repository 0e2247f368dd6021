"""The chart of a benchmark record. Owns what goes on which axis for each kind; refuses records without rows."""

from __future__ import annotations

from finback.errors import RequestError
from finback.tools import svg
from finback.tools.record import Record, Row, label_of


def plot(record: Record) -> str:
    """A record as SVG text. RequestError if nothing was measured."""
    rows: list[Row] = record["rows"]
    if not rows:
        raise RequestError("the record has no rows; there is nothing to plot")
    kind = record["kind"]
    if kind == "decode":
        return svg.draw([_over_context(rows, _title(record))])
    if kind == "kernels":
        return svg.draw(_kernels(rows, _title(record)))
    measure, unit = ("ms", "milliseconds") if kind == "startup" else ("tokens_per_s", "tokens/s")
    bars = [_bar(kind, row, measure) for row in rows]
    return svg.draw([svg.Bars(f"{kind}, {_title(record)}", unit, bars)])


def _title(record: Record) -> str:
    return f"{record['machine']['cpu']}, {record['level']}, finback {record['version']}"


def _bar(kind: str, row: Row, measure: str, mark: str | None = None, scale: float = 1.0) -> svg.Bar:
    low, high = row[f"{measure}_spread"]
    return svg.Bar(
        label_of(kind, row), row[measure] * scale, low * scale, high * scale, row[mark] if mark else None
    )


def _kernels(rows: list[Row], title: str) -> list[svg.Bars | svg.Lines]:
    """One row waits for memory and is held against reading; many rows are arithmetic."""
    charts: list[svg.Bars | svg.Lines] = []
    single = [row for row in rows if row["rows"] == 1]
    if single:
        bars = [_bar("kernels", row, "gbps", "read_gbps") for row in single]
        charts.append(svg.Bars(f"One row, {title}", "GB/s of file bytes", bars, "reading memory"))
    many = [row for row in rows if row["rows"] > 1]
    if many:
        bars = [_bar("kernels", row, "gbps", scale=row["gflops"] / row["gbps"]) for row in many]
        charts.append(svg.Bars(f"Many rows, {title}", "GFLOP/s", bars))
    return charts


def _over_context(rows: list[Row], title: str) -> svg.Lines:
    points = [svg.Point(row["depth"], row["tokens_per_s"], *row["tokens_per_s_spread"]) for row in rows]
    name = f"{rows[0]['threads']} thread" + ("s" if rows[0]["threads"] != 1 else "")
    return svg.Lines(f"Decode, {title}", "tokens of context", "tokens/s", [(name, points)])
