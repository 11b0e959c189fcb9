"""`flowstate memory import | erase`: what changes a store."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json, Space, StorePath, open_store, opened_space
from flowstate_local.erasure import erase
from flowstate_local.errors import UsageError
from flowstate_local.space_import import imported

IMPORT_EXAMPLES = (
    "Examples: `flowstate memory import travel.jsonl --space travel` · "
    "`flowstate memory export -s a | flowstate memory import - -s b`"
)
ERASE_EXAMPLES = (
    "Examples: `flowstate memory erase n7 n8 --space travel` · `flowstate memory erase --request r3` · "
    "`flowstate memory erase --all --space travel`"
)


def import_space(
    file: Annotated[str, typer.Argument(help="What `export` wrote; - is stdin.")],
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Make a new space of an export. All of it is checked before anything is written."""
    with reported(as_json=as_json):
        try:
            lines = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).splitlines()
        except OSError as error:
            raise UsageError(f"can't read {file}: {error.strerror}") from None
        opened = open_store(store)
        try:
            done = imported(opened, space, lines)
        finally:
            opened.close()
        if as_json:
            write_json(asdict(done))
            return
        Console().print(
            f"{done.requests} requests, {done.nodes} nodes, {done.events} events, {done.tasks} tasks"
        )
        for task in done.skipped_tasks:
            Console(stderr=True).print(f"[yellow]left out: task {task} was compacted[/]")


def erase_parts(
    nodes: Annotated[list[str] | None, typer.Argument(help="Nodes, such as n7.")] = None,
    requests: Annotated[
        list[str] | None, typer.Option("--request", "-r", help="A whole request, such as r3; repeatable.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="The whole space, tasks too.")] = False,
    space: Space = "default",
    store: StorePath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: Json = False,
) -> None:
    """Erase what nodes or requests said, from the log too. Tombstones stay. It can't be undone.

    The bytes stay in free pages of the file until something overwrites them.
    """
    with opened_space(store, space, as_json=as_json, may="change") as opened:
        if everything == bool(nodes or requests):
            raise UsageError("name nodes, requests, or --all", hint="`flowstate memory erase --help`")
        what = "everything" if everything else ", ".join([*(nodes or []), *(requests or [])])
        if not yes:
            typer.confirm(f"Erase {what} of space {space}?", abort=True, err=True)
        if everything:
            opened.erase_space(space)
            told: dict[str, object] = {"space": space}
        else:
            told = asdict(erase(opened, space, nodes=nodes or [], requests=requests or []))
        if as_json:
            write_json(told)
        else:
            Console().print(f"erased: {what}", highlight=False, markup=False)
