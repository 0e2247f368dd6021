"""Tables on a terminal: aligned columns of plain text, numbers to the right. Owns alignment; refuses to wrap."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lines of columns under `head`; the first `left` columns are text, the others numbers."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[i].ljust(widths[i]) if i < left else row[i].rjust(widths[i]) for i in range(len(head))]
        return "  ".join(cells).rstrip()

    return "\n".join(line(row) for row in (head, *rows))
