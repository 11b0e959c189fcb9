"""`flowstate run`: one request, from the shell."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console

from flowstate_local.cli import show
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    EngineOption,
    Json,
    Mcp,
    Model,
    ProfileOption,
    Space,
    StorePath,
    Tools,
    Url,
    Window,
    open_store,
    opened_engine,
    opened_toolbox,
)
from flowstate_local.errors import UsageError
from flowstate_local.loop import Agent, RequestResult, StepTrace

EXAMPLES = """Examples:

`flowstate run "Remember: Ana is a vegetarian" --space travel`

`flowstate run "Plan dinner for Ana" --space travel --tools mytools:toolbox`

`flowstate run "What changed this week?" --mcp 'npx -y @modelcontextprotocol/server-github'` with an MCP server's tools

`flowstate run --resume --space travel`

Exit codes: 0 replied, 1 ended without a reply, 2 usage, 3 model or engine, 4 store, 130 interrupted (resume later).
"""


def run(
    request: Annotated[str | None, typer.Argument(help="What to do.", show_default=False)] = None,
    space: Space = "default",
    tools: Tools = None,
    mcp: Mcp = None,
    date: Annotated[
        str | None, typer.Option("--date", help="Today's date as the model should see it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the unfinished request of the space.")
    ] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="End it instead, keeping its nodes.")] = False,
    max_steps: Annotated[
        int, typer.Option("--max-steps", min=1, help="Steps after which it ends without a reply.")
    ] = 16,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Run one request in a space and print every step."""
    with reported(as_json=as_json):
        if sum([request is not None, resume, abandon]) != 1:
            raise UsageError("give a request, or --resume, or --abandon", hint="See `flowstate run --help`.")
        choice = EngineChoice(engine, model, url, profile, window)
        console = Console(stderr=as_json)
        opened = open_store(store)
        try:

            async def go() -> RequestResult | None:
                async with (
                    opened_toolbox(tools, mcp, profile) as toolbox,
                    opened_engine(choice, Console(stderr=True)) as running,
                ):
                    agent = Agent(
                        running,
                        opened,
                        toolbox,
                        max_steps=max_steps,
                        on_step=None if as_json else _printer(console, opened.reader(space)),
                    )
                    if request is not None:
                        return await agent.run(request, space=space, date=date)
                    return await (agent.abandon(space) if abandon else agent.resume(space))

            result = asyncio.run(go())
        finally:
            opened.close()
        if result is None:
            raise UsageError(f"space {space!r} has no unfinished request")
        report(result, console, as_json=as_json)


def report(result: RequestResult, console: Console, *, as_json: bool) -> None:
    """Print how a request ended. Exit code 1 if there is no reply."""
    if as_json:
        write_json(asdict(result))
    else:
        console.print(show.result_line(result), highlight=False)
        if result.outcome != "replied":
            console.print(f"[red]{result.message}[/]", highlight=False)
    if result.outcome not in ("replied", "cancelled"):
        raise typer.Exit(1)


def _printer(console: Console, reader: Any) -> Any:
    def printed(trace: StepTrace) -> None:
        console.print(show.step_view(trace, reader), highlight=False)

    return printed
