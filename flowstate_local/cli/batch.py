"""`flowstate batch`: run a file of tasks on one engine, each exactly once, and go on after any kill."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from flowstate_local import batch as batch_module
from flowstate_local.batch import BatchOptions, BatchTask, read_tasks
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    EngineOption,
    Json,
    Mcp,
    Model,
    ProfileOption,
    Tools,
    Url,
    Window,
    open_store,
    opened_engine,
    opened_toolbox,
    toolbox_of,
)
from flowstate_local.completion import Sampling
from flowstate_local.errors import UsageError

EXAMPLES = """Examples:

`flowstate batch tasks.jsonl --out results --tools mytools:toolbox`

`flowstate batch tasks.jsonl --out results --shard 2/8` one part of a job array, in results/shard-2-of-8

`flowstate batch tasks.jsonl --out results --check` reads the file and runs nothing

A line of the file: `{"id": "a1", "requests": ["Book a table for two", {"text": "Cancel it", "date": "2026-03-02"}]}`,
and, if you like, "space", "tools" and "budget" (max_steps, max_tokens, max_seconds). schemas/batch_task.json has all.

Ctrl-C, a crash or a kill lose nothing: the same command goes on. results.jsonl holds a line a task, traces.jsonl all
that happened in it.

Exit codes: 0 all done, 1 some tasks failed, 2 usage, 3 model or engine, 4 store, 130 interrupted.
"""
TICK_S = 10.0
"""Seconds between two lines where there's no terminal to draw on."""


def batch(
    tasks: Annotated[Path, typer.Argument(help="The tasks, a JSON object a line.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of results, traces and the store.")],
    tools: Tools = None,
    mcp: Mcp = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Agents at once.")] = 16,
    max_steps: Annotated[int, typer.Option("--max-steps", min=1, help="Of a request.")] = 16,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=160, help="Generated in a step, at most.")
    ] = 2_500,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="The paper's preset is 0.1.")
    ] = 0.1,
    shard: Annotated[str, typer.Option("--shard", help="Part i of n of the tasks, as i/n.")] = "1/1",
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run tasks again that failed.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Read the file, say what is in it, run nothing.")
    ] = False,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    as_json: Json = False,
) -> None:
    """Run many tasks, many agents at once; each task exactly once, whatever is killed when."""
    with reported(as_json=as_json):
        loaded = read_tasks(tasks)
        part = _part(shard)
        mine = batch_module.of_shard(loaded, part)
        if check:
            _say_what_is_there(loaded, mine, as_json=as_json)
            return
        folder = out if part == (1, 1) else out / f"shard-{part[0]}-of-{part[1]}"
        sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
        options = BatchOptions(tools, sampling, max_steps, concurrency, part, retry_failed)
        progress = _carry_out(
            loaded, folder, options, EngineChoice(engine, model, url, profile, window), mcp, as_json
        )
        if progress.failed:
            raise typer.Exit(1)


def _carry_out(
    tasks: list[BatchTask],
    folder: Path,
    options: BatchOptions,
    choice: EngineChoice,
    mcp: list[str] | None,
    as_json: bool,
) -> batch_module.Progress:
    console = Console(stderr=True, highlight=False)
    state = batch_module.Progress(0)
    store = open_store(folder / "store")
    try:
        with _Bar(console, quiet=as_json) as bar:

            def note(progress: batch_module.Progress) -> None:
                nonlocal state
                state = progress
                bar.show(progress)

            async def work() -> batch_module.Progress:
                async with (
                    opened_toolbox(options.tools, mcp, choice.profile) as toolbox,
                    opened_engine(choice, console) as engine,
                ):
                    own = toolbox_of(options.tools).names
                    shared = tuple(one for one in toolbox if one.name not in own)
                    with_shared = replace(options, shared_tools=shared)
                    return await batch_module.run(tasks, folder, engine, store, with_shared, on_progress=note)

            state = asyncio.run(work())
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("[yellow]interrupted; the same command goes on with the rest[/]")
        raise KeyboardInterrupt from None
    finally:
        store.close()
        _conclude(state, folder, console, as_json=as_json)
    return state


def _conclude(state: batch_module.Progress, folder: Path, console: Console, *, as_json: bool) -> None:
    elapsed_s = time.monotonic() - state.started
    if as_json:
        write_json(
            {
                "name": "batch",
                "figures": {
                    "tasks": {"value": state.total, "unit": "tasks"},
                    "done": {"value": state.done, "unit": "tasks"},
                    "failed": {"value": state.failed, "unit": "tasks"},
                    "steps": {"value": state.n_steps, "unit": "steps"},
                    "prompt_tokens": {"value": state.prompt_tokens, "unit": "tokens"},
                    "cached_tokens": {"value": state.cached_tokens, "unit": "tokens"},
                    "generated_tokens": {"value": state.generated_tokens, "unit": "tokens"},
                    "steps_per_s": {"value": round(state.n_steps / elapsed_s, 3), "unit": "steps/s"},
                },
            }
        )
        return
    failed = f", [red]{state.failed} failed[/]" if state.failed else ""
    console.print(f"{state.done} of {state.total} tasks{failed}; {_rates(state)}; kept in {folder}")


def _part(shard: str) -> tuple[int, int]:
    part, slash, parts = shard.partition("/")
    if not (slash and part.isdecimal() and parts.isdecimal()):
        raise UsageError(f"--shard {shard!r} is not i/n", hint="For example --shard 2/8.")
    return int(part), int(parts)


def _say_what_is_there(tasks: list[BatchTask], mine: list[BatchTask], *, as_json: bool) -> None:
    told: dict[str, Any] = {
        "tasks": len(tasks),
        "requests": sum(len(task.requests) for task in tasks),
        "spaces": len({task.where for task in tasks}),
        "of_this_shard": len(mine),
    }
    if as_json:
        write_json(told)
    else:
        typer.echo(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in told.items()))


def _rates(state: batch_module.Progress) -> str:
    elapsed_s = max(time.monotonic() - state.started, 1e-9)
    tokens = state.prompt_tokens + state.generated_tokens
    cached = f", cached {state.cached_tokens / state.prompt_tokens:.0%}" if state.prompt_tokens else ""
    return f"{state.n_steps / elapsed_s:.2f} steps/s, {tokens / elapsed_s:,.0f} tokens/s{cached}"


class _Bar:
    """Tasks done, how fast, and how long it will take."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._said_at = 0.0
        self._progress = Progress(
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(elapsed_when_finished=True),
            TextColumn("[dim]{task.description}[/]"),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._bar = self._progress.add_task("", total=None)

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, state: batch_module.Progress) -> None:
        """Called after each step and task."""
        if self._console.is_terminal:
            self._progress.start()
            self._progress.update(
                self._bar, total=state.total, completed=state.done, description=_rates(state)
            )
        elif not self._quiet and time.monotonic() - self._said_at > TICK_S:
            self._said_at = time.monotonic()
            self._console.print(f"{state.done}/{state.total} tasks  {_rates(state)}", soft_wrap=True)
