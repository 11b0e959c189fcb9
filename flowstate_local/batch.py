"""Offline batches: many tasks, many agents at once on one engine, each task exactly once whatever is killed when.

The store of the batch is the truth: every request carries the task and the place it was asked for, so a run that goes
on finds in the log what was done, resumes what was under way, and asks the rest. `results.jsonl` and `traces.jsonl`
get one line a task when it ends; they are valid at every moment but for a last line that a kill cut short, which is
dropped when the batch goes on.
"""

import asyncio
import contextvars
import hashlib
import json
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flowstate_local.completion import Sampling
from flowstate_local.engines.base import Engine
from flowstate_local.errors import EngineUnavailable, FlowStateError, UsageError
from flowstate_local.events import EVENT, Cause
from flowstate_local.history import cause_of
from flowstate_local.jsonl import JsonLines, whole_lines
from flowstate_local.loop import Agent, RequestResult, StepTrace
from flowstate_local.repository import RequestRecord
from flowstate_local.stores.base import Store, check_space_name
from flowstate_local.tools import Tool, load_tools

logger = logging.getLogger(__name__)

RESULTS = "results.jsonl"
TRACES = "traces.jsonl"
FRESH = "task-"
"""Prefix of the space of a task that names none."""
N_FAULTS = 5
"""Bad lines that are told at once."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BatchRequest(_Model):
    """One request of a task."""

    text: Annotated[str, Field(min_length=1)]
    date: str | None = None
    """Today's date as the model should see it."""


class BatchBudget(_Model):
    """What a task may cost; None: no bound but the command's."""

    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Of each request."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Prompt and generated tokens of the whole task."""
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    """Of the whole task, from its first step in this run."""


class BatchTask(_Model):
    """One line of the input."""

    id: Annotated[str, Field(min_length=1, max_length=200)]
    """Unique in the file: by it a batch goes on."""
    requests: Annotated[tuple[BatchRequest, ...], Field(min_length=1)]
    """In order, in one memory; a plain string will do for a request without a date."""
    space: str | None = None
    """The memory to use; tasks of one space run one after the other, in the order of the file. None: a fresh one."""
    tools: str | None = None
    """module:attribute; None: the command's."""
    budget: BatchBudget = BatchBudget()

    @field_validator("requests", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [{"text": one} if isinstance(one, str) else one for one in value]
        return value

    @property
    def where(self) -> str:
        """Its space."""
        return (
            self.space
            if self.space is not None
            else f"{FRESH}{hashlib.sha256(self.id.encode()).hexdigest()[:16]}"
        )


class BatchReply(_Model):
    """How one request ended."""

    request: str
    """Its id in the space."""
    outcome: str
    message: str
    steps: int


class BatchResult(_Model):
    """One line of the output."""

    id: str
    status: Literal["done", "failed"]
    """"failed" where a request ended without a reply; the requests after it were not asked."""
    space: str
    replies: tuple[BatchReply, ...] = ()
    error: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished_at: float = 0.0
    """Seconds since the epoch."""


@dataclass(frozen=True)
class BatchOptions:
    """What holds for all tasks of a batch."""

    tools: str | None = None
    sampling: Sampling = Sampling()
    max_steps: int = 16
    concurrency: int = 16
    shard: tuple[int, int] = (1, 1)
    """This part and how many there are, from 1. Tasks of one space are in one part."""
    retry_failed: bool = False
    shared_tools: tuple[Tool, ...] = ()
    """Offered to every task besides the tools that it names."""


@dataclass
class Progress:
    """How a batch stands."""

    total: int
    done: int = 0
    """Tasks with a result, those of earlier runs included."""
    failed: int = 0
    n_steps: int = 0
    """Of this run, as are the tokens."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    started: float = field(default_factory=time.monotonic)


def read_tasks(path: Path) -> list[BatchTask]:
    """Read the input of a batch.

    Raises:
        UsageError: the file isn't there, lines are broken, an id is there twice, or a space's name is bad. All are
            found before anything runs; the first few are named with their lines.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    tasks: dict[str, BatchTask] = {}
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            task = BatchTask.model_validate_json(line)
            check_space_name(task.where)
        except ValidationError as error:
            fault = error.errors()[0]
            faults.append(f"line {number}: {'.'.join(map(str, fault['loc'])) or 'line'}: {fault['msg']}")
            continue
        except UsageError as error:
            faults.append(f"line {number}: {error}")
            continue
        if task.id in tasks:
            faults.append(f"line {number}: the id {task.id!r} is there already")
        tasks[task.id] = task
    if faults:
        more = f" and {len(faults) - N_FAULTS} more" if len(faults) > N_FAULTS else ""
        raise UsageError(
            f"{path}: {'; '.join(faults[:N_FAULTS])}{more}",
            hint="Nothing was run. Mend the lines, then go on.",
        )
    if not tasks:
        raise UsageError(f"{path} holds no task")
    return list(tasks.values())


def of_shard(tasks: Iterable[BatchTask], shard: tuple[int, int]) -> list[BatchTask]:
    """The tasks of one part, by a hash of their space.

    Raises:
        UsageError: there is no such part.
    """
    part, parts = shard
    if not 1 <= part <= parts:
        raise UsageError(f"shard {part}/{parts} is none of 1/{parts} to {parts}/{parts}")
    return [
        task for task in tasks if int(hashlib.sha256(task.where.encode()).hexdigest(), 16) % parts == part - 1
    ]


def read_results(out: Path) -> dict[str, BatchResult]:
    """The results of a batch so far by task id, the last of each.

    Raises:
        UsageError: a line in the middle is damaged.
    """
    results: dict[str, BatchResult] = {}
    for number, line in whole_lines(out / RESULTS):
        try:
            result = BatchResult.model_validate_json(line)
        except ValidationError:
            raise UsageError(
                f"{out / RESULTS}, line {number} is damaged",
                hint="Remove that line: its task is then looked up anew.",
            ) from None
        results[result.id] = result
    return results


async def run(
    tasks: Sequence[BatchTask],
    out: Path,
    engine: Engine,
    store: Store,
    options: BatchOptions | None = None,
    *,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Run a batch, or what is left of it. Cancelling keeps everything; so does a kill.

    Args:
        tasks: all tasks, in the order of the file.
        out: folder of the results; made if it isn't there.
        engine: the model.
        store: of this batch alone, the same in each run.
        options: what holds for all tasks.
        on_progress: called after each step and each task.

    Raises:
        EngineUnavailable: the engine died; the batch can go on with another one.
        UsageError: the folder can't be used, or another process does.
    """
    options = options or BatchOptions()
    mine = of_shard(tasks, options.shard)
    with JsonLines.open(out / RESULTS) as results, JsonLines.open(out / TRACES) as traces:
        before = read_results(out)
        batch = _Batch(engine, store, options, results, traces, on_progress, Progress(len(mine)))
        batch.traced = {json.loads(line)["id"] for _, line in whole_lines(out / TRACES)}
        left = []
        for task in mine:
            result = before.get(task.id)
            if result is None or (options.retry_failed and result.status == "failed"):
                left.append(task)
            else:
                batch.count(result)
        on_progress(batch.progress)
        await batch.run_all(left)
        return batch.progress


_Asked = list[tuple[str, RequestRecord]]
"""Requests of one task: place, record. Given-up ones too."""


class _OverBudget(FlowStateError):
    """A task spent what it may."""


@dataclass
class _Spent:
    """What a task cost so far in this run, against its budget."""

    budget: BatchBudget
    started: float
    tokens: int = 0

    def check(self) -> None:
        seconds = time.monotonic() - self.started
        if self.budget.max_tokens is not None and self.tokens > self.budget.max_tokens:
            raise _OverBudget(
                f"the task spent {self.tokens:,} tokens; it may spend {self.budget.max_tokens:,}"
            )
        if self.budget.max_seconds is not None and seconds > self.budget.max_seconds:
            raise _OverBudget(f"the task took {seconds:.1f} s; it may take {self.budget.max_seconds:g}")


_spent: contextvars.ContextVar[_Spent] = contextvars.ContextVar("spent")


@dataclass
class _Batch:
    """One run of a batch."""

    engine: Engine
    store: Store
    options: BatchOptions
    results: JsonLines
    traces: JsonLines
    on_progress: Callable[[Progress], None]
    progress: Progress
    traced: set[str] = field(default_factory=set)
    """Tasks whose trace was written, maybe just before a kill."""
    _agents: dict[tuple[str | None, int], Agent] = field(default_factory=dict)

    async def run_all(self, tasks: Sequence[BatchTask]) -> None:
        """As many spaces at once as there may be; within one the tasks keep their order."""
        spaces: dict[str, list[BatchTask]] = defaultdict(list)
        for task in tasks:
            spaces[task.where].append(task)
        waiting = iter(spaces.values())

        async def worker() -> None:
            for chain in waiting:
                asked = await asyncio.to_thread(self._asked, chain[0].where)
                for task in chain:
                    await self._run(task, asked[task.id])

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self.options.concurrency, len(spaces))):
                    workers.create_task(worker())
        except* EngineUnavailable as died:
            raise died.exceptions[0] from None

    def count(self, result: BatchResult) -> None:
        """Take a result into the progress."""
        self.progress.done += 1
        self.progress.failed += result.status == "failed"

    async def _run(self, task: BatchTask, asked: "_Asked") -> None:
        records: list[RequestRecord] = []
        error = ""
        _spent.set(_Spent(task.budget, time.monotonic()))
        try:
            agent = self._agent(task)
            for place, request in enumerate(task.requests, start=1):
                records.append(await self._ask(agent, task, place, request, asked))
                if records[-1].outcome != "replied":
                    error = f"request {place} ended without a reply: {records[-1].outcome}"
                    break
        except EngineUnavailable:
            raise
        except Exception as fault:  # whatever one task does, the others go on; it is told in its result
            logger.info("task %s failed", task.id, exc_info=True)
            error = f"{type(fault).__name__}: {fault}"
            with suppress(FlowStateError):
                given_up = await Agent(self.engine, self.store).abandon(task.where)
                if given_up is not None:
                    asked.append(("", self._record(task, given_up)))
        writing = asyncio.ensure_future(asyncio.to_thread(self._conclude, task, records, asked, error))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # A thread can't be stopped; the files must not be closed while it writes.
            await writing
            raise

    async def _ask(
        self, agent: Agent, task: BatchTask, place: int, request: BatchRequest, asked: "_Asked"
    ) -> RequestRecord:
        """The record of one request: found, resumed, or made."""
        cause = Cause(task=task.id, step=str(place), idempotency_key=f"{task.id}/{place}")
        for step, record in asked:
            if step == cause.step and record.outcome == "replied":
                return record
        ended: RequestResult | None = None
        head = self.store.head(task.where)
        if head.open_request is not None:
            if cause_of(self.store.events(task.where, after=head.open_seq - 1, upto=head.open_seq)) == cause:
                ended = await agent.resume(task.where)
            else:  # of another task that was given up for good
                await agent.abandon(task.where)
        if ended is None:
            ended = await agent.run(request.text, space=task.where, date=request.date, cause=cause)
        record = self._record(task, ended)
        asked.append((cause.step, record))
        return record

    def _record(self, task: BatchTask, ended: RequestResult) -> RequestRecord:
        record = self.store.reader(task.where).request(ended.request)
        assert record is not None, "a request that ended is persisted"
        return record

    def _asked(self, space: str) -> "defaultdict[str, _Asked]":
        """What the log of a space knows: the requests of each task, oldest first."""
        asked: defaultdict[str, _Asked] = defaultdict(list)
        for record in self.store.requests(space):
            cause = cause_of(self.store.events(space, after=record.first_seq - 1, upto=record.first_seq))
            if cause is not None:
                asked[cause.task].append((cause.step, record))
        return asked

    def _agent(self, task: BatchTask) -> Agent:
        key = (task.tools or self.options.tools, task.budget.max_steps or self.options.max_steps)
        if key not in self._agents:
            tools, max_steps = key
            self._agents[key] = Agent(
                self.engine,
                self.store,
                [*(load_tools(tools) if tools else ()), *self.options.shared_tools],
                sampling=self.options.sampling,
                max_steps=max_steps,
                on_step=self._on_step,
            )
        return self._agents[key]

    def _on_step(self, trace: StepTrace) -> None:
        completion, progress = trace.completion, self.progress
        progress.n_steps += 1
        progress.prompt_tokens += completion.prompt_tokens
        progress.cached_tokens += completion.cached_tokens
        progress.generated_tokens += completion.generated_tokens
        self.on_progress(progress)
        spent = _spent.get()
        spent.tokens += completion.prompt_tokens + completion.generated_tokens
        spent.check()

    def _conclude(
        self, task: BatchTask, records: Sequence[RequestRecord], asked: "_Asked", error: str
    ) -> None:
        """Write the trace and then the result; both are on disk before the task counts as ended."""
        events = [event for _, record in asked for event in self._events(task, record)]
        if task.id not in self.traced or self.options.retry_failed:
            self.traces.append({"id": task.id, "space": task.where, "events": events})
            self.traced.add(task.id)
        replied = [event for event in events if event["kind"] == "ModelReplied"]
        result = BatchResult(
            id=task.id,
            status="failed" if error else "done",
            space=task.where,
            replies=tuple(
                BatchReply(request=r.id, outcome=r.outcome, message=r.message, steps=r.steps) for r in records
            ),
            error=error,
            prompt_tokens=sum(event["prompt_tokens"] for event in replied),
            cached_tokens=sum(event["cached_tokens"] for event in replied),
            generated_tokens=sum(event["generated_tokens"] for event in replied),
            finished_at=time.time(),
        )
        self.results.append(result.model_dump(mode="json"))
        self.count(result)
        self.on_progress(self.progress)

    def _events(self, task: BatchTask, record: RequestRecord) -> Iterator[Mapping[str, Any]]:
        for event in self.store.events(task.where, after=record.first_seq - 1, upto=record.last_seq):
            if event.request == record.id:
                yield EVENT.dump_python(event, mode="json")
