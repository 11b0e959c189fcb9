"""`flowstate bench list`: what can be run."""

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from flowstate_local.cli.bench.extra import evaluation_extra
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json

if TYPE_CHECKING:
    from flowstate_local.bench.preset import Preset, Series

EXAMPLES = """Examples:

`flowstate bench list` shows suites, presets and methods

`flowstate bench list --json` the same for programs, with what may be set of each suite
"""


def list_(as_json: Json = False) -> None:
    """List suites, presets and methods."""
    with reported(as_json=as_json):
        with evaluation_extra():
            from flowstate_local.bench.methods import METHODS
            from flowstate_local.bench.preset import shipped
            from flowstate_local.bench.suites import SUITES
        presets = shipped()
        if as_json:
            write_json(
                {
                    "suites": {
                        name: {
                            "about": one.about,
                            "needs": one.needs,
                            "settings": one.settings.model_json_schema()["properties"],
                        }
                        for name, one in SUITES.items()
                    },
                    "presets": {name: preset.model_dump(mode="json") for name, preset in presets.items()},
                    "methods": {name: one.about for name, one in METHODS.items()},
                }
            )
            return
        console = Console()
        console.print(
            _table("suite", ["about", "needs"], {n: (s.about, s.needs) for n, s in SUITES.items()}),
            _table("preset", ["about"], {n: (_about(p),) for n, p in presets.items()}),
            _table("method", ["what stands in its prompt"], {n: (m.about,) for n, m in METHODS.items()}),
        )
        typer.secho("flowstate bench run PRESET --methods a,b", fg="bright_black")


def _about(preset: "Preset | Series") -> str:
    cost = getattr(preset, "cost", "")
    return f"{preset.about}. {cost}" if cost else preset.about


def _table(what: str, columns: list[str], rows: dict[str, tuple[str, ...]]) -> Table:
    table = Table(what, *columns, box=None, padding=(0, 2), title_justify="left")
    for name, cells in rows.items():
        table.add_row(f"[bold]{name}[/]", *cells)
    table.add_section()
    return table
