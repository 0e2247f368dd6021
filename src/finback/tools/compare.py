"""Two benchmark records, row by row: ratios, and which of them are more than noise.

Owns the rule: a difference counts when the quartiles of the two measurements do not overlap. Refuses records of
different kinds. Rows that only one record has are listed, never dropped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from finback.errors import RequestError
from finback.tools.record import KEYS, LESS_IS_BETTER, MEASURES, Record, Row, key_of, label_of

_HEAD: Final = ("machine", "version", "commit", "level", "arithmetic_version", "model", "weights")


@dataclass(frozen=True, slots=True)
class Ratio:
    """One measure of one row in both records. `verdict`: better, worse, or same where the spreads overlap."""

    row: str
    measure: str
    a: float
    a_spread: tuple[float, float]
    b: float
    b_spread: tuple[float, float]
    ratio: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All ratios b / a; what else differs between the records; rows that only one of them has."""

    kind: str
    differences: tuple[tuple[str, Any, Any], ...]
    ratios: tuple[Ratio, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def compare(a: Record, b: Record) -> Comparison:
    """How `b` compares with `a`. RequestError if they are of different kinds."""
    kind = a["kind"]
    if b["kind"] != kind:
        raise RequestError(f"the records are of {kind} and of {b['kind']}; compare two of the same kind")
    assert kind in KEYS
    rows_a, rows_b = ({key_of(kind, row): row for row in record["rows"]} for record in (a, b))
    ratios = [
        ratio
        for key, row in rows_a.items()
        if key in rows_b
        for measure in MEASURES[kind]
        if (ratio := _ratio(label_of(kind, row), measure, row, rows_b[key])) is not None
    ]
    return Comparison(
        kind,
        tuple((name, a.get(name), b.get(name)) for name in _HEAD if a.get(name) != b.get(name)),
        tuple(ratios),
        tuple(label_of(kind, row) for key, row in rows_a.items() if key not in rows_b),
        tuple(label_of(kind, row) for key, row in rows_b.items() if key not in rows_a),
    )


def _ratio(label: str, measure: str, a: Row, b: Row) -> Ratio | None:
    """None where a row lacks the measure, as a program of another version may have written it."""
    spread = f"{measure}_spread"
    if not all(row.get(measure) and row.get(spread) for row in (a, b)):
        return None
    (a_low, a_high), (b_low, b_high) = a[spread], b[spread]
    verdict = "same"
    if b_low > a_high or b_high < a_low:
        verdict = "better" if (b_low > a_high) != (measure in LESS_IS_BETTER) else "worse"
    return Ratio(
        label, measure, a[measure], (a_low, a_high), b[measure], (b_low, b_high), b[measure] / a[measure], verdict
    )
