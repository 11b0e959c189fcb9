"""`flowstate serve`: an engine, a store and the API in front of them, on one port."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flowstate_local import logs
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
    tenants_file,
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
OPERATOR = "admin"


def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535)] = 8_080,
    upstream: Annotated[
        str | None, typer.Option("--upstream", help="A running vLLM server to use instead of starting one.")
    ] = None,
    upstream_key: Annotated[
        str | None,
        typer.Option(
            "--upstream-key",
            envvar="FLOWSTATE_UPSTREAM_KEY",
            help="The key that server asks for, if it does.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            help="Folder or hub id with its model's tokenizer. Without it each new text is sent there to be tokenised, "
            "which holds up all turns for that moment.",
        ),
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
    log: Annotated[
        str, typer.Option("--log", help="File for JSON lines, one per request and event; - is stderr.")
    ] = "-",
    otlp: Annotated[
        str | None, typer.Option("--otlp", help="Send traces to this OpenTelemetry collector (OTLP/HTTP).")
    ] = None,
    new_admin_key: Annotated[
        bool, typer.Option("--new-admin-key", help="Print another admin key of the operator.")
    ] = False,
) -> None:
    """Serve an OpenAI-compatible API with a memory, for many tenants."""
    with reported(), _logging_to(log):
        try:
            from flowstate_local.server.admission import Limits
            from flowstate_local.server.running import Observed, run
            from flowstate_local.server.service import Service
            from flowstate_local.server.tenants import Tenants
        except ModuleNotFoundError as error:
            raise UsageError(
                f"serving needs the package {error.name}", hint="pip install 'flowstate-local[server]'"
            ) from None
        console = Console(stderr=True, highlight=False)
        folder: Path = store or data_home()
        opened, tenants = open_store(folder), Tenants(tenants_file(folder))
        choice = EngineChoice(
            "server" if upstream else "vllm", model, upstream, profile, window, upstream_key, tokenizer
        )

        async def work() -> None:
            async with (
                opened_toolbox(tools, mcp, profile) as toolbox,
                opened_engine(choice, console) as engine,
            ):
                _tell_key(tenants, console, anew=new_admin_key)
                limits = Limits(max_running=max_running)
                with Observed.by(otlp, toolbox.names) as observed:
                    named = "" if upstream else str(Path(model).resolve() if Path(model).is_dir() else model)
                    service = Service(engine, opened, tenants, toolbox, limits, observed.observer, named)
                    console.print(f"[bold]http://{host}:{port}/v1[/] {service.model}; memories in {folder}")
                    await run(service, observed.metrics, host, port, origins=origin or ())

        try:
            asyncio.run(work())
        finally:
            opened.close()
            tenants.close()


@contextmanager
def _logging_to(path: str) -> Iterator[None]:
    try:
        handler = logs.write_to(path)
    except OSError as error:
        raise UsageError(f"can't write the log {path}: {error.strerror}") from error
    logging.getLogger("flowstate_local").setLevel(logging.INFO)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _tell_key(tenants: "Tenants", console: Console, *, anew: bool) -> None:
    operator = next((tenant for tenant in tenants.all() if tenant.is_operator), None)
    if operator is None:
        operator, anew = tenants.create(OPERATOR, is_operator=True), True
    if anew:
        console.print(f"admin key, told only now: [bold]{tenants.issue(operator, 'admin')}[/]")
