"""Where the command line chooses its engine and store: the options, and what they open."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

import typer
from rich.console import Console

from flowstate_local.cli.model import model_progress
from flowstate_local.cli.report import reported
from flowstate_local.completion import Profile
from flowstate_local.engines.base import Engine
from flowstate_local.errors import UsageError
from flowstate_local.stores.base import Store, check_space_name
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.tools import Toolbox, load_tools

DEFAULT_MODEL = "qwen2.5-coder-1.5b-instruct"
EngineName = Literal["vllm", "server", "transformers", "scripted"]

Json = Annotated[bool, typer.Option("--json", help="Write JSON to stdout and nothing else.")]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Folder of the store. Default: $XDG_DATA_HOME/flowstate_local/memory.",
        show_default=False,
    ),
]
Space = Annotated[str, typer.Option("--space", "-s", help="The memory to use; a new name begins a new one.")]
Model = Annotated[
    str, typer.Option("--model", "-m", help="Catalogue name, hub id (owner/name) or model folder.")
]
EngineOption = Annotated[str, typer.Option("--engine", "-e", help="vllm, server or transformers.")]
Url = Annotated[str | None, typer.Option("--url", help="Address of a running vLLM server (engine server).")]
ProfileOption = Annotated[
    str, typer.Option("--profile", help="What masks the tokens: guidance, outlines or xgrammar.")
]
Window = Annotated[int, typer.Option("--window", help="Context window in tokens; capped by the model's own.")]
Tools = Annotated[
    str | None, typer.Option("--tools", "-t", help="Tools as module:attribute.", show_default=False)
]
Mcp = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp",
        help="Tools of an MCP server: its URL, or the command that starts it, in quotes; repeatable.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class EngineChoice:
    """What the options say about the engine."""

    engine: str = "vllm"
    model: str = DEFAULT_MODEL
    url: str | None = None
    profile: str = "guidance"
    window: int = 8_192
    api_key: str | None = None
    """Sent to a server that asks for one."""
    tokenizer: str | None = None
    """Folder or hub id with the tokenizer of a server's model, so that the server needn't be asked."""


def data_home() -> Path:
    """Where memories live unless told otherwise (XDG base directories)."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "flowstate_local" / "memory"


def tenants_file(store: Path) -> Path:
    """Where the server of a store keeps its tenants and the hashes of their keys: beside it."""
    return store.parent / f"{store.name}-tenants.sqlite"


def open_store(path: Path | None, *, create: bool = True, readonly: bool = False) -> Store:
    """The LMDB store of the command line.

    Raises:
        StoreError: the folder can't be used as a store.
    """
    return LmdbStore.open(path or data_home(), create=create, readonly=readonly)


@contextmanager
def opened_space(
    path: Path | None,
    space: str,
    *,
    as_json: bool,
    may: Literal["read", "change", "create"] = "read",
    maker: str = "flowstate run",
) -> Iterator[Store]:
    """The store with a space in it, for the body of a command. Reading never changes it; only `create` makes one.

    Args:
        path: folder of the store, if not the default.
        space: has to exist, unless it may be created.
        as_json: how errors are reported.
        may: what the command may do to the store.
        maker: the command that makes a store, for the hint.

    Raises:
        typer.Exit: there's no store, or no such space in it; and whatever the body raised, reported.
    """
    with reported(as_json=as_json):
        check_space_name(space)
        folder = path or data_home()
        if may != "create" and not folder.is_dir():
            raise UsageError(f"no store at {folder}", hint=f"`{maker}` makes one; --store names another.")
        store = open_store(folder, create=may == "create", readonly=may == "read")
        try:
            if may != "create" and space not in store.spaces():
                known = ", ".join(store.spaces()[:20]) or "none"
                raise UsageError(f"no space {space!r} in {folder}", hint=f"Spaces there: {known}.")
            yield store
        finally:
            store.close()


def toolbox_of(tools: str | None) -> Toolbox:
    """The tools that `--tools` names; none without it."""
    return Toolbox(load_tools(tools)) if tools else Toolbox([])


@asynccontextmanager
async def opened_toolbox(
    tools: str | None, mcp: list[str] | None, profile: str = "guidance"
) -> AsyncIterator[Toolbox]:
    """The tools of `--tools` and of all servers of `--mcp`, which stay connected in this context.

    Args:
        tools: as module:attribute.
        mcp: URLs or command lines of MCP servers.
        profile: whose grammar must hold the arguments of foreign tools.

    Raises:
        UsageError: a name that can't be resolved, or the package `mcp` is missing.
        ToolError: a server doesn't answer.
    """
    own = toolbox_of(tools)
    if not mcp:
        yield own
        return
    from flowstate_local.mcp_tools import mcp_tools

    async with AsyncExitStack() as servers:
        found = list(own)
        for target in mcp:
            names = {one.name for one in found}
            found += await servers.enter_async_context(
                mcp_tools(target, taken=names, profile=_profile(profile))
            )
        yield Toolbox(found)


@asynccontextmanager
async def opened_engine(choice: EngineChoice, console: Console) -> AsyncIterator[Engine]:
    """Start the chosen engine, with a spinner on stderr, and close it in the end.

    Raises:
        UsageError: an unknown engine or profile, or `server` without an address.
        EngineUnavailable: it can't run here, or didn't start.
        ModelError: the weights can't be had.
    """
    profile = _profile(choice.profile)
    if choice.engine not in ("vllm", "server", "transformers"):
        raise UsageError(f"unknown engine {choice.engine!r}", hint="Use vllm, server or transformers.")
    folder = None
    if choice.engine != "server":
        with model_progress(quiet=not console.is_terminal) as progress:
            from flowstate_local.models import resolve

            # The fallback engine computes in bf16 or fp32; only vLLM has kernels for int8.
            precision = "bf16" if choice.engine == "transformers" and _in_catalogue(choice.model) else None
            folder = str(resolve(choice.model, precision=precision, progress=progress))
    with console.status(f"starting {choice.engine} with {choice.model} ..."):
        engine = await _start(choice, profile, folder)
    try:
        yield engine
    finally:
        await engine.close()


async def _start(choice: EngineChoice, profile: Profile, folder: str | None) -> Engine:
    if choice.engine == "server":
        from flowstate_local.engines.server import ServerEngine

        if choice.url is None:
            raise UsageError("engine server needs --url", hint="For example --url http://localhost:8000")
        model = None if choice.model == DEFAULT_MODEL else choice.model
        return await ServerEngine.connect(
            choice.url,
            model=model,
            api_key=choice.api_key,
            profile=profile,
            tokenizer_folder=choice.tokenizer,
        )
    assert folder is not None
    if choice.engine == "transformers":
        from flowstate_local.engines.transformers import TransformersEngine

        return await TransformersEngine.start(folder, profile=profile, context_window=choice.window)
    from flowstate_local.engines.vllm import VllmEngine

    return await VllmEngine.start(folder, profile=profile, context_window=choice.window)


def _in_catalogue(model: str) -> bool:
    from flowstate_local.models import list_models

    return model.lower() in {entry.name for entry in list_models()}


def _profile(name: str) -> Profile:
    if name not in ("guidance", "outlines", "xgrammar"):
        raise UsageError(f"unknown profile {name!r}", hint="Use guidance, outlines or xgrammar.")
    return cast(Profile, name)
