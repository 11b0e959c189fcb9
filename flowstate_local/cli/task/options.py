"""Options and constants that several task commands share."""

from typing import Annotated

import typer

from flowstate_local.task_events import TaskStatus

app = typer.Typer(
    name="task",
    help="Durable tasks: workflows that go on where they stood, whatever happened. Run them, look into them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

ENDS = (
    "Exit codes: 0 completed, 1 failed, 2 usage, 3 model or engine, 4 store, 6 paused, 130 interrupted "
    "(`flowstate task resume` goes on)."
)
EXIT: dict[TaskStatus, int] = {"failed": 1, "paused": 6}
INTERRUPTED = 130
GRACE_S = 10.0
"""Seconds that steps under way get to end after the first Ctrl-C."""
POLL_S = 1.0

TaskArgument = Annotated[str, typer.Argument(metavar="ID", help="A task; `flowstate task ls` shows them.")]
Log = Annotated[
    str | None, typer.Option("--log", help="Append one JSON line per event to this file (- is stderr).")
]
At = Annotated[int | None, typer.Option("--at", min=1, help="As it was just after this event.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Only mark it; a worker goes on with it.")]
