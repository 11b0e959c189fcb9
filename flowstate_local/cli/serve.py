"""`flowstate serve`: an engine, a store and the API in front of them, on one port."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flowstate_local.cli.report import reported
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    Mcp,
    Model,
    ProfileOption,
    StorePath,
    Tools,
    Window,
    data_home,
    open_store,
    opened_engine,
    opened_toolbox,
)
from flowstate_local.errors import UsageError

if TYPE_CHECKING:
    from flowstate_local.server.tenants import Tenants

EXAMPLES = """Examples:

`flowstate serve` starts vLLM in this process, with memories in the usual place

`flowstate serve --upstream http://gpu1:8000 --port 9000` in front of a running vLLM server

Point any OpenAI client at http://HOST:PORT/v1; `user`, the header X-FlowState-Space or the path /v1/spaces/NAME names the memory.
Agents that speak MCP find the memories at http://HOST:PORT/mcp, with the same keys.
The first start makes an admin key and prints it once.
"""
FIRST_TENANT = "admin"


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535)] = 8_080,
    upstream: Annotated[
        str | None, typer.Option("--upstream", help="A running vLLM server to use instead of starting one.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    tools: Tools = None,
    mcp: Mcp = None,
    store: StorePath = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", help="Web pages that may call /mcp, as https://host; repeatable."),
    ] = None,
    max_running: Annotated[
        int, typer.Option("--max-running", min=1, help="Turns in the engine at once.")
    ] = 64,
) -> None:
    """Serve an OpenAI-compatible API with a memory, for many tenants."""
    with reported():
        try:
            import uvicorn

            from flowstate_local.server.app import make_app
            from flowstate_local.server.service import Limits, Service
            from flowstate_local.server.tenants import Tenants
        except ModuleNotFoundError as error:
            raise UsageError(
                f"serving needs the package {error.name}", hint="pip install 'flowstate-local[server]'"
            ) from None
        console = Console(stderr=True, highlight=False)
        folder: Path = store or data_home()
        opened, tenants = open_store(folder), Tenants(folder.parent / f"{folder.name}-tenants.sqlite")
        choice = EngineChoice("server" if upstream else "vllm", model, upstream, profile, window)

        async def work() -> None:
            async with (
                opened_toolbox(tools, mcp, profile) as toolbox,
                opened_engine(choice, console) as engine,
            ):
                service = Service(engine, opened, tenants, toolbox, Limits(max_running=max_running))
                _first_key(tenants, console)
                console.print(f"[bold]http://{host}:{port}/v1[/] {engine.model}; memories in {folder}")
                config = uvicorn.Config(
                    make_app(service, origins=origin or ()), host=host, port=port, log_level="warning"
                )
                await uvicorn.Server(config).serve()

        try:
            asyncio.run(work())
        finally:
            opened.close()
            tenants.close()


def _first_key(tenants: "Tenants", console: Console) -> None:
    if not tenants.all():
        key = tenants.issue(tenants.create(FIRST_TENANT), "admin")
        console.print(f"admin key, told only now: [bold]{key}[/]")
