"""`flowstate chat`: one request after the other in a space, with its memory."""

import asyncio

from rich.console import Console
from rich.markup import escape

from flowstate_local.cli import show
from flowstate_local.cli.report import reported, show_error
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    EngineOption,
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
from flowstate_local.errors import EngineUnavailable, FlowStateError
from flowstate_local.loop import Agent
from flowstate_local.stores.base import Store

EXAMPLES = """Examples:

`flowstate chat --space travel`

`flowstate chat --space travel --tools mytools:toolbox`

Type /steps to see each step, /index for the memory's index, /quit or Ctrl-D to leave. Ctrl-C stops the request that
runs; what it did is kept, and the next start goes on with it.
"""


def chat(
    space: Space = "default",
    tools: Tools = None,
    mcp: Mcp = None,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
) -> None:
    """Talk with an agent that remembers across requests and sessions."""
    with reported():
        opened = open_store(store)
        try:
            choice = EngineChoice(engine, model, url, profile, window)
            asyncio.run(_talk(choice, opened, space, tools, mcp))
        finally:
            opened.close()


async def _talk(
    choice: EngineChoice, store: Store, space: str, tools: str | None, mcp: list[str] | None
) -> None:
    console = Console()
    steps_shown = False
    async with (
        opened_toolbox(tools, mcp, choice.profile) as toolbox,
        opened_engine(choice, Console(stderr=True)) as engine,
    ):

        def watch(trace: object) -> None:
            if steps_shown:
                console.print(show.step_view(trace, store.reader(space)), highlight=False)  # type: ignore[arg-type]

        agent = Agent(engine, store, toolbox, on_step=watch)
        console.print(f"[dim]space {escape(space)} · {engine.model} · /steps /index /quit[/]")
        if store.head(space).open_request is not None:
            console.print("[yellow]going on with the request that was interrupted[/]")
            done = await agent.resume(space)
            if done is not None:
                console.print(escape(done.message))
        while True:
            try:
                line = (await asyncio.to_thread(console.input, "[bold blue]› [/]")).strip()
            except EOFError:
                return
            if line in ("/quit", "/exit"):
                return
            if line == "/steps":
                steps_shown = not steps_shown
                console.print(f"[dim]steps are {'shown' if steps_shown else 'hidden'}[/]")
            elif line == "/index":
                for node in store.nodes(space):
                    console.print(show.node_markup(node), highlight=False)
            elif line:
                await _answer(agent, space, line, console)


async def _answer(agent: Agent, space: str, line: str, console: Console) -> None:
    try:
        with console.status("thinking ..."):
            result = await agent.run(line, space=space)
    except EngineUnavailable:
        raise
    except FlowStateError as error:
        show_error(error)
        return
    console.print(escape(result.message))
    console.print(show.result_line(result), highlight=False)
