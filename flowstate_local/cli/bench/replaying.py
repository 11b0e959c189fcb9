"""`flowstate bench replay`: the recorded words of the model through today's code; `show` reads one episode."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from flowstate_local.cli.bench.extra import evaluation_extra
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json
from flowstate_local.errors import UsageError

EXAMPLES = """Examples:

`flowstate bench replay runs/dependence` plays all episodes again, without a model

`flowstate bench replay runs/dependence --show fee-travel-0-0 --method flowstate` prints what the model saw and said

Exit codes: 0 all came to the same, 1 some did not, 2 usage.
"""


def replay(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    show: Annotated[str | None, typer.Option("--show", help="Print the trace of this task instead.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="Of this method only (with --show).")] = None,
    as_json: Json = False,
) -> None:
    """Play a run again from its traces: is the result still the same with today's code?"""
    with reported(as_json=as_json):
        if show is not None:
            _show(run, show, method, as_json=as_json)
            return
        counts = asyncio.run(_replay(run, as_json=as_json))
        if as_json:
            write_json(
                {
                    "name": "replay",
                    "figures": {k: {"value": n, "unit": "episodes"} for k, n in counts.items()},
                }
            )
        else:
            typer.echo(", ".join(f"{n} {name}" for name, n in counts.items()))
        if counts["different"]:
            raise typer.Exit(1)


async def _replay(run: Path, *, as_json: bool) -> Counter[str]:
    with evaluation_extra():
        from flowstate_local.bench.replay import replay as again
    counts: Counter[str] = Counter(same=0, different=0, skipped=0)
    async for one in again(run):
        counts["skipped" if one.skipped else "same" if one.same else "different"] += 1
        record = one.record
        if as_json and not one.same:
            write_json(
                {
                    "task": record.task,
                    "method": record.method,
                    "skipped": one.skipped,
                    "scores": dict(one.scores),
                }
            )
        elif one.skipped:
            typer.secho(
                f"{record.task}, {record.method}: not played again: {one.skipped}", fg="yellow", err=True
            )
        elif not one.same:
            typer.secho(
                f"{record.task}, {record.method}: {dict(record.scores)} then, {dict(one.scores)} now",
                fg="red",
            )
    return counts


def _show(run: Path, task: str, method: str | None, *, as_json: bool) -> None:
    with evaluation_extra():
        from flowstate_local.bench.records import read_config, read_traces
    read_config(run)
    found = [t for t in read_traces(run) if t["task"] == task and method in (None, t["method"])]
    if not found:
        raise UsageError(f"{run} has no trace of {task!r}{f' by {method}' if method else ''}")
    console = Console(highlight=False)
    for trace in found:
        if as_json:
            write_json(trace)
            continue
        console.rule(f"[bold]{escape(task)}[/], {trace['method']}, trial {trace['trial']}", align="left")
        for number, call in enumerate(trace["calls"], start=1):
            head = f"call {number}: {call['prompt_tokens']:,} prompt tokens, {call['cached_tokens']:,} cached"
            console.print(f"[cyan]{head}; after {call['shared']:,} tokens as before:[/]")
            console.print(f"[dim]{escape(call['prompt'].rstrip())}[/]", soft_wrap=True)
            console.print(
                f"[green]{escape(call['output'])}[/] [dim]({call['finish_reason']})[/]", soft_wrap=True
            )
