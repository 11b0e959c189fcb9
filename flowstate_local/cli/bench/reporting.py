"""`flowstate bench report`: what runs came to, as one HTML file and in Markdown."""

from pathlib import Path
from typing import Annotated

import typer

from flowstate_local.cli.bench.extra import evaluation_extra
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json
from flowstate_local.errors import UsageError

EXAMPLES = """Examples:

`flowstate bench report runs/dependence` writes report.html and report.md beside the run

`flowstate bench report runs/deep-6 runs/deep-20 --out both` compares depths in one report

`flowstate bench report runs/dependence --prices prices.yaml` adds what it cost

A price file holds currency, and prompt, cached, generated (per million tokens) or engine_hour.
"""


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write to. Default: the first run.", show_default=False),
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", help="A price file (YAML).", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of one run or of several: one HTML file that needs nothing else, and Markdown."""
    with reported(as_json=as_json):
        with evaluation_extra():
            from flowstate_local.bench.accounting import load_prices
            from flowstate_local.bench.report.html import page
            from flowstate_local.bench.report.markdown import document
            from flowstate_local.bench.report.view import load_run
        loaded = [load_run(path) for path in runs]
        costs = load_prices(prices) if prices else None
        folder = out or runs[0]
        written = {"html": folder / "report.html", "markdown": folder / "report.md"}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written["html"].write_text(page(loaded, costs))
            written["markdown"].write_text(document(loaded, costs))
        except OSError as error:
            raise UsageError(f"{folder} can't be written: {error.strerror or error}") from None
        if as_json:
            write_json({name: str(path) for name, path in written.items()})
            return
        for path in written.values():
            typer.echo(path)
