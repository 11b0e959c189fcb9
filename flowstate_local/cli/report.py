"""How every command ends: what an error looks like, and which exit code it has.

0 done    2 the caller's mistake    3 model, engine or grammar    4 store    5 tool    130 interrupted
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from flowstate_local.errors import (
    EngineError,
    FlowStateError,
    GrammarError,
    ModelError,
    StoreError,
    ToolError,
    UsageError,
)

_EXIT_CODES: tuple[tuple[type[FlowStateError], int], ...] = (
    (UsageError, 2),
    (EngineError, 3),
    (ModelError, 3),
    (GrammarError, 3),
    (StoreError, 4),
    (ToolError, 5),
)
_INTERRUPTED = 130


def exit_code(error: FlowStateError) -> int:
    """The exit code of that branch of the error tree; 1 for a branch this table does not know yet."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def describe(error: FlowStateError) -> dict[str, object]:
    """The error as JSON output carries it."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "hint": error.hint,
        "retryable": error.retryable,
    }


def write_json(value: object) -> None:
    """One line of JSON on stdout."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def show_error(error: FlowStateError, *, as_json: bool = False) -> None:
    """Say what went wrong: on stderr for people, on stdout for programs that read JSON there."""
    if as_json:
        write_json({"error": describe(error)})
        return
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(str(error), err=True)
    if error.hint:
        typer.secho("hint: ", fg="yellow", nl=False, err=True)
        typer.echo(error.hint, err=True)


@contextmanager
def reported(*, as_json: bool = False) -> Iterator[None]:
    """Run a command's body; end it with a message and an exit code instead of a traceback.

    Only this project's own errors are caught. Anything else is a bug and keeps its traceback.

    Raises:
        typer.Exit: with the code of the error.
    """
    try:
        yield
    except FlowStateError as error:
        show_error(error, as_json=as_json)
        raise typer.Exit(exit_code(error)) from error
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(_INTERRUPTED) from None
