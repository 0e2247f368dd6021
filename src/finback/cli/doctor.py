"""`finback doctor`: what finback sees of this machine, for people and for bug reports."""

from __future__ import annotations

import json
import platform
from typing import Any

import click


@click.command("doctor")
@click.option("--kernels", is_flag=True, help="The function chosen for each operation, format and level.")
@click.option("--isa", default=None, metavar="LEVEL", help="With --kernels: as if this level were forced.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(kernels: bool, isa: str | None, as_json: bool) -> None:
    """Show versions, processor levels, threads, memory and settings.

    \b
      finback doctor
      finback doctor --kernels
    """
    report = _kernels(isa) if kernels else _report()
    if as_json:
        click.echo(json.dumps(report, indent=2))
    elif kernels:
        click.echo(f"level {report['level']}")
        for row in report["kernels"]:
            click.echo(f"{row['op']:<18} {row['format']:<12} {row['level']:<8} {row['function']}")
    else:
        for name, value in report.items():
            if isinstance(value, list):
                click.echo(f"{name}:")
                for line in value:
                    click.echo("  " + "  ".join(str(v) for v in line.values()))
            else:
                click.echo(f"{name:<12} {value}")


def _report() -> dict[str, Any]:
    from finback import __version__, native
    from finback.config import ARITHMETIC_VERSION
    from finback.settings import all_settings, default_threads
    from finback.weights.ledger import default_budget

    threads = default_threads()
    budget = default_budget()
    return {
        "finback": __version__,
        "arithmetic": ARITHMETIC_VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "threads": f"{threads.count} ({threads.reason})",
        "memory": f"{budget.bytes / 2**30:.1f} GiB ({budget.reason})",
        "levels": [
            {"level": level.name, "state": "usable" if level.supported else f"not usable: {level.missing}"}
            for level in native.levels()
        ],
        "settings": [{"name": s.name, "value": s.value, "meaning": s.meaning} for s in all_settings()],
    }


def _kernels(isa: str | None) -> dict[str, Any]:
    from finback import native
    from finback.settings import forced_isa

    level = native.select_level(isa or forced_isa())
    return {"level": level, "kernels": native.kernel_functions(level)}
