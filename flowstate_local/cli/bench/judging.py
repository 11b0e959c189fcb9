"""`flowstate bench judge`: ask a judge about a run that was played without one."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from flowstate_local.cli.bench.extra import evaluation_extra
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json

EXAMPLES = """Examples:

`flowstate bench judge runs/tau3-retail --url http://localhost:8000/v1 --model judge`

The judge is any OpenAI-compatible server; its key comes from FLOWSTATE_BENCH_API_KEY. What it has said is kept, also when it is away
in the middle: the same command asks the rest.
"""


def judge(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    url: Annotated[str, typer.Option("--url", help="Of the judge's server, up to and including /v1.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Name of the judge on that server.")],
    again: Annotated[bool, typer.Option("--again", help="Also episodes that were judged already.")] = False,
    as_json: Json = False,
) -> None:
    """Let a judge score what only a judge can score."""
    with reported(as_json=as_json):
        with evaluation_extra():
            from flowstate_local.bench.second_pass import judge as ask
        n_judged = 0

        async def work() -> None:
            nonlocal n_judged
            async for record in ask(run, {"judge_url": url, "judge_model": model}, again=again):
                n_judged += 1
                if as_json:
                    write_json({"task": record.task, "method": record.method, "scores": record.scores})

        try:
            asyncio.run(work())
        finally:
            if not as_json:
                typer.echo(f"{n_judged} episodes judged; flowstate bench report {run}")
