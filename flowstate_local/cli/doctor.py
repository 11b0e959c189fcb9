"""`flowstate doctor`: what this machine can run, and what to do about each fault."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    EngineOption,
    Json,
    Model,
    ProfileOption,
    StorePath,
    Url,
    Window,
    data_home,
    opened_engine,
)
from flowstate_local.context import count_tokens
from flowstate_local.doctor import Check, examine
from flowstate_local.models.cache import root
from flowstate_local.rules import EXAMPLES as EXAMPLE_TEXT
from flowstate_local.rules import RULES

EXAMPLES = """Examples:

`flowstate doctor`

`flowstate doctor --start` also starts the engine and says what it really uses

Exit codes: 0 no faults (warnings may be there), 1 at least one fault.
"""
_MARK = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fault": "[red]fault[/]"}


def doctor(
    start: Annotated[bool, typer.Option("--start", help="Start the engine too and ask it.")] = False,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Say which engines this machine can run, what masks the tokens, and what to mend."""
    with reported(as_json=as_json):
        checks = examine(store or data_home(), root())
        if start:
            import asyncio

            checks += asyncio.run(_ask(EngineChoice(engine, model, url, profile, window)))
        if as_json:
            write_json([asdict(check) for check in checks])
        else:
            Console().print(table_of(checks), highlight=False)
        if any(check.level == "fault" for check in checks):
            raise typer.Exit(1)


async def _ask(choice: EngineChoice) -> list[Check]:
    async with opened_engine(choice, Console(stderr=True)) as running:
        static = count_tokens(running.tokenizer, [RULES, EXAMPLE_TEXT])
        blocks = static // running.block_size if running.block_size else 0
        prefix = f"{static:,} tokens, {blocks} blocks"
        return [
            Check("running engine", "ok", f"{running.name}, {running.model}"),
            Check("masks tokens", "ok", running.profile),
            Check("window", "ok", f"{running.context_window:,} tokens"),
            Check("cache block in use", "ok", f"{running.block_size} tokens"),
            Check(
                "static prefix",
                "ok" if blocks >= 2 else "warn",
                prefix,
                ""
                if blocks >= 2
                else "A prefix shorter than two blocks is hardly ever served from the cache.",
            ),
        ]


def table_of(checks: list[Check]) -> Table:
    """One line a check, and its remedy below."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for check in checks:
        remedy = f"\n[dim]→ {escape(check.remedy)}[/]" if check.remedy else ""
        table.add_row(_MARK[check.level], check.name, escape(check.found) + remedy)
    return table
