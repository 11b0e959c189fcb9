"""`flowstate demo`: the hotel case of the paper, live, with the verdict against the truth."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from flowstate_local.cli import show
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    Model,
    ProfileOption,
    StorePath,
    Url,
    Window,
    open_store,
    opened_engine,
)
from flowstate_local.completion import Sampling
from flowstate_local.demo.figures import figures, total
from flowstate_local.demo.play import Play, play
from flowstate_local.demo.script import scripted_engine
from flowstate_local.demo.story import variant
from flowstate_local.engines.base import Engine
from flowstate_local.errors import FlowStateError, StoreBusy, UsageError
from flowstate_local.graph import trace
from flowstate_local.loop import StepTrace
from flowstate_local.nodes import NodeId
from flowstate_local.stores.base import Store

EXAMPLES = """Examples:

`flowstate demo` plays the paper's case and shows every step

`flowstate demo --variants 20 --json` varies names and numbers and reports how many were right

`flowstate demo --engine scripted` plays the same story without a model

Exit codes: 0 played (whatever the verdict), 2 usage, 3 model or engine, 4 store, 130 interrupted.
"""
MAX_TOKENS = 2_500
"""Of one step. The grammar's bounds follow from it: room for two calls and two nodes."""


@dataclass(frozen=True)
class _Table:
    """What is played, and where it's shown."""

    store: Store
    console: Console
    as_json: bool
    concurrency: int


def demo(
    variants: Annotated[int, typer.Option("--variants", "-n", min=1, help="Play this many variants.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Seed of names and numbers.")] = 0,
    engine: Annotated[
        str, typer.Option("--engine", "-e", help="vllm, server, transformers, or scripted (no model).")
    ] = "vllm",
    model: Model = DEFAULT_MODEL,
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Variants played at once.")] = 8,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="The paper's preset is 0.1.")
    ] = 0.1,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the memory in the store (see --store).")] = False,
    store: StorePath = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON line per variant and the figures last.")
    ] = False,
) -> None:
    """Six requests in one memory: the last can only be answered rightly with the evidence of the first.

    Request 1 books a hotel and plans to rebook if another one becomes cheaper. Requests 2 to 5 are other business.
    In request 6 the other hotel is cheaper, but a fee stands in the booking terms that nobody has looked at since.
    """
    with reported(as_json=as_json):
        choice = EngineChoice(engine, model, url, profile, window)
        console = Console(stderr=as_json)
        sampling = Sampling(temperature=temperature, max_tokens=MAX_TOKENS)
        with _folder(keep, store) as folder:
            opened = open_store(folder)
            try:
                table = _Table(opened, console, as_json, concurrency)
                started = time.monotonic()
                plays, missing = asyncio.run(_play_all(choice, range(variants), seed, sampling, table))
                elapsed_s = time.monotonic() - started
                _conclude(plays, missing, elapsed_s, table, choice)
            finally:
                opened.close()


def _folder(keep: bool, store: Path | None) -> Any:
    if store is not None or keep:
        return nullcontext(store)
    return tempfile.TemporaryDirectory(prefix="flowstate-demo-")


def _conclude(plays: list[Play], missing: int, elapsed_s: float, table: _Table, choice: EngineChoice) -> None:
    if not table.as_json and len(plays) == 1:
        _show_end(plays[0], table)
    elif not table.as_json and plays:
        table.console.print(_verdicts(plays), highlight=False)
    if missing and not table.as_json:
        table.console.print(f"[yellow]{missing} variants were not played to their end and are not counted[/]")
    result = figures(plays, elapsed_s=elapsed_s)
    result["engine"] = choice.engine
    result["model"] = choice.model if choice.engine != "scripted" else "none: a script plays the model"
    if table.as_json or len(plays) != 1:
        write_json(result)


async def _play_all(
    choice: EngineChoice, numbers: Sequence[int], seed: int, sampling: Sampling, table: _Table
) -> tuple[list[Play], int]:
    """Play the variants, several at once; Ctrl-C keeps those that are done. Also says how many are missing."""
    scripted = choice.engine == "scripted"
    if scripted and not table.as_json:
        table.console.print("[yellow]engine scripted: no model runs, a script plays its part[/]")
    source: AbstractAsyncContextManager[Engine | None] = (
        nullcontext(None) if scripted else opened_engine(choice, Console(stderr=True))
    )
    plays: list[Play] = []
    async with source as engine:
        gate = asyncio.Semaphore(table.concurrency)
        single = len(numbers) == 1

        async def one(number: int) -> None:
            trip = variant(number, seed)
            async with gate:
                done = await play(
                    engine or scripted_engine(trip),
                    table.store,
                    trip,
                    space=_space(table.store, number, seed),
                    sampling=sampling,
                    **(_printers(table, _space(table.store, number, seed)) if single else {}),
                )
            plays.append(done)
            if table.as_json:
                write_json({"variant": number, **done.as_dict()})

        await _gather(numbers, one, table)
    return sorted(plays, key=lambda p: p.space), len(numbers) - len(plays)


async def _gather(numbers: Sequence[int], one: Any, table: _Table) -> None:
    if len(numbers) == 1:
        await one(numbers[0])
        return
    with Progress(console=Console(stderr=True), disable=table.as_json) as progress:
        bar = progress.add_task("variants", total=len(numbers))

        async def counted(number: int) -> None:
            try:
                await one(number)
            except FlowStateError as error:
                progress.console.print(f"[red]variant {number}: {escape(str(error))}[/]")
            progress.advance(bar)

        try:
            await asyncio.gather(*(counted(number) for number in numbers))
        except asyncio.CancelledError:
            progress.console.print("[yellow]interrupted: the variants that are done are reported[/]")


def _space(store: Store, number: int, seed: int) -> str:
    """A space of its own for each variant; a kept one from an earlier run is refused, not mixed up with."""
    name = f"demo-{seed}-{number:02}"
    if store.head(name).seq and store.head(name).version == 0:
        raise StoreBusy(f"space {name!r} has an unfinished play", hint="Use another --seed or --store.")
    if store.head(name).seq:
        raise UsageError(f"space {name!r} was played before", hint="Use another --seed or --store.")
    return name


def _printers(table: _Table, space: str) -> dict[str, Any]:
    if table.as_json:
        return {}
    reader = table.store.reader(space)

    def on_step(step: StepTrace) -> None:
        table.console.print(show.step_view(step, reader), highlight=False)

    def on_request(number: int, ask: Any) -> None:
        table.console.print(show.request_header(number, ask.text, ask.date))

    return {"on_step": on_step, "on_request": on_request}


def _show_end(done: Play, table: _Table) -> None:
    console, audit = table.console, done.audit
    reader = table.store.reader(done.space)
    last = list(table.store.nodes(done.space))
    decision = next((n for n in reversed(last) if n.type == "judgement" and n.request == "r6"), None)
    if decision is not None:
        console.rule("[bold]the decision and what it rests on[/]", align="left")
        console.print(show.chain_tree(trace(NodeId(decision.id), reader)), highlight=False)
    console.rule("[bold]where the tokens went[/]", align="left")
    console.print(_audit(audit), highlight=False)
    console.rule("[bold]verdict[/]", align="left")
    console.print(_verdict_text(done), highlight=False)


def _audit(audit: Any) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, size in audit.segments.items():
        if not size:
            continue
        table.add_row(f"prompt: {name}", f"{size:,}", f"{size / audit.prompt_tokens:.0%}")
    table.add_row("[bold]prompt, all[/]", f"{audit.prompt_tokens:,}", f"{audit.steps} steps")
    computed = audit.prompt_tokens - audit.cached_tokens
    table.add_row("from the prefix cache", f"{audit.cached_tokens:,}", f"{computed:,} computed")
    table.add_row("cached in steps 2..", f"{audit.cached_share:.1%}", "of their prompt tokens")
    table.add_row("generated", f"{audit.generated_tokens:,}", f"{audit.model_s:.0f} s in the model")
    faults = f"{audit.unparsable} unparsable, {audit.cut_off} cut off, {audit.refused} refused by ISU or PSA"
    table.add_row("faults", "", faults)
    return table


def _verdict_text(done: Play) -> str:
    trip, verdict = done.trip, done.verdict
    truth = (
        f"Keeping {trip.booked} costs {trip.price_booked}; changing costs {trip.price_cheaper} + a fee of {trip.fee} "
        f"= {trip.changing_costs}. Right: [bold]{verdict.truth}[/]."
    )
    said = verdict.answer or "nothing"
    mark = "[bold green]right[/]" if verdict.right else "[bold red]wrong[/]"
    path = ", ".join(
        f"{'[green]✓[/]' if reached else '[red]✗[/]'} {what}"
        for what, reached in (
            ("opened the old decision", verdict.opened_decision),
            ("opened the evidence", verdict.opened_evidence),
            ("calculated", verdict.calculated),
        )
    )
    return f"{truth}\nThe model answered: [bold]{said}[/], which is {mark}.\n{path}"


def _verdicts(plays: list[Play]) -> Table:
    table = Table(
        "variant", "keep", "change", "truth", "answer", "", "decision", "evidence", "sum", "steps", box=None
    )
    for one in plays:
        trip, verdict = one.trip, one.verdict
        table.add_row(
            one.space.removeprefix("demo-"),
            str(trip.price_booked),
            f"{trip.price_cheaper} + {trip.fee}",
            verdict.truth,
            verdict.answer or "none",
            "[green]right[/]" if verdict.right else "[red]wrong[/]",
            *(
                "✓" if b else "✗"
                for b in (verdict.opened_decision, verdict.opened_evidence, verdict.calculated)
            ),
            str(one.audit.steps),
        )
    audit = total(plays)
    table.caption = f"cached in steps 2..: {audit.cached_share:.1%} of prompt tokens"
    return table
