"""The loop: the only file that knows the order of a step.

    prompt = serialize(...)             context.py
    completion = generate(prompt)       an engine, under the step's grammar
    commit the delta                    isu.py
    grant the accesses                  psa.py
    run the tools, or reply             tools.py
    persist at the end                  a store

Every verb returns events; the loop makes them durable and only then applies them to the active state. Whatever kills
the process, the log holds what was done, and `resume` goes on from there.
"""

import asyncio
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from flowstate_local import index as index_module
from flowstate_local import isu, logs, psa, rails
from flowstate_local.completion import Completion, Constraint, Sampling
from flowstate_local.context import Context, Prompt, fixed, serialize
from flowstate_local.decision import decide, observe, parse, read_reply
from flowstate_local.engines.base import Engine, complete
from flowstate_local.errors import PromptTooLong, StoreBusy, ToolError, UsageError
from flowstate_local.events import (
    Cause,
    DeltaCommitted,
    Disclosed,
    Event,
    ModelReplied,
    RequestFinished,
    RequestStarted,
    StepStarted,
    ToolFailure,
    ToolFinished,
    ToolStarted,
    numbered,
)
from flowstate_local.grammar import Defer, StepFacts, step_constraint
from flowstate_local.index import Index
from flowstate_local.message_stream import MessageStream
from flowstate_local.nodes import EvidenceId, NodeId, RequestId
from flowstate_local.protocol import StepOutput, ToolCall
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.state import ActiveState
from flowstate_local.stores.base import FinishedRequest, Head, Store, check_space_name, digest
from flowstate_local.tools import Tool, Toolbox, ToolContext, ToolResult

MIN_STEP_TOKENS = 160
"""A step with less room than this isn't worth starting: a short reply must fit."""
MAX_FAULTS = 3
"""Cut-off, empty or unparsable outputs in a row that end a request."""
STALL_LIMIT = 2
"""Steps in a row that changed nothing, after which only a reply is allowed; twice that ends the request."""


@dataclass(frozen=True)
class StepTrace:
    """What one step saw, said and led to; for people and reports, never read by the loop."""

    request: RequestId
    step: int
    prompt: Prompt
    completion: Completion
    output: StepOutput | None
    events: tuple[Event, ...]
    total_s: float
    """Of the whole step, tools included."""
    grammar_s: float
    """To make the step's grammar; the engine compiles it when the prompt arrives."""
    engine_s: float
    """From the prompt to the whole output, as the loop saw it."""


@dataclass(frozen=True)
class RequestResult:
    """How a request ended and what it cost."""

    request: RequestId
    outcome: str
    """"replied", or why there's no reply: "step_budget", "no_progress", "failed", "cancelled"; or "waiting" for the
    result of an external tool."""
    message: str
    nodes: tuple[NodeId, ...]
    steps: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    faults: dict[str, int]
    """Outputs of which nothing was committed, by kind: "cut_off", "empty", "unparsable"."""
    call: ToolStarted | None = None
    """What it waits for; bring the result with `Agent.supply`."""


@dataclass
class _Run:
    """One request in flight. Thrown away when anything raises: the log is what counts."""

    space: str
    head: Head
    reader: Reader
    index: Index
    state: ActiveState
    context: Context
    first_seq: int
    last_step: list[Event] = field(default_factory=list)
    """Events of the step before: what the observation shows."""
    recent: list[Event] = field(default_factory=list)
    """Events of the step in flight: all since the last StepStarted."""
    stalls: int = 0
    """Steps in a row that changed nothing."""
    last_shape: str = ""
    """Of the last step of which something was used."""
    trace: list[Event] = field(default_factory=list)
    """Events since the model was last asked, for `on_step`."""
    waiting: ToolStarted | None = None
    """The external call whose result is awaited."""
    raw: deque[list[Event]] = field(default_factory=deque)
    """Events of the last steps, as many as the raw buffer holds, oldest first."""

    def note_steps(self, events: Iterable[Event]) -> None:
        """Divide the events of the request into steps."""
        for event in events:
            if isinstance(event, StepStarted):
                self._note_progress()
                self.last_step, self.recent = self.recent, []
                self.raw.append(self.last_step)
            else:
                self.recent.append(event)

    def _note_progress(self) -> None:
        """From the log alone, so that a resumed request is offered what it would have been."""
        replied = next((e for e in self.recent if isinstance(e, ModelReplied)), None)
        output = parse(replied.text) if replied is not None and not replied.fault else None
        if output is not None:
            self.last_shape = output.shape
            self.stalls = 0 if any(map(_changes_something, self.recent)) else self.stalls + 1


class Agent:
    """A FlowState agent: an engine, a store and tools. One agent serves any number of spaces at once.

    Requests of one space run one after the other; requests of different spaces run concurrently.

    Args:
        engine: the model. The agent does not close it.
        store: the repositories. The agent does not close it.
        tools: functions made by `@tool`, or a `Toolbox`.
        instructions: of the application, such as a policy; they stand in the static part of every prompt.
        sampling: decoding parameters; the default is the paper's preset, capped by the window.
        defer: "strict" (a step that opens anything may not act) or "trust" (the paper's rule: the model must wait).
        grounded: whether a fact is refused that holds a number which the model can't have read in this request.
        max_steps: steps after which a request ends without a reply.
        index_tokens: budget of the index in the prompt.
        page_chars: characters of a raw result per page; by default a part of the model's window.
        raw_steps: steps of the request that also stay in the prompt as they were, outputs and raw results whole,
            against details lost; 0 for none. They cost their tokens anew in each step.
        cache_salt: separates the prefix cache of tenants; by default all spaces share the static prefix.
        listener: called after each durable commit with its events, numbered.
        on_step: called after each step with its trace.
        on_text: called with each piece of the reply, while it is still being written where the grammar makes sure
            that what is written is said (strict deferral, a grammar of its own for each step), else at its end.
        clock: seconds since the epoch.

    Raises:
        UsageError: two tools of one name, or an unknown deferral rule.
        GrammarError: a tool whose arguments the engine's grammar can't enforce.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        tools: Toolbox | Iterable[Tool] = (),
        *,
        instructions: str = "",
        sampling: Sampling | None = None,
        defer: Defer = "strict",
        grounded: bool = True,
        max_steps: int = 16,
        index_tokens: int = 2_048,
        page_chars: int | None = None,
        raw_steps: int = 0,
        cache_salt: str | None = None,
        listener: Callable[[Sequence[Event]], None] | None = None,
        on_step: Callable[[StepTrace], None] | None = None,
        on_text: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if defer not in get_args(Defer):
            raise UsageError(f"unknown deferral rule {defer!r}", hint="Use strict or trust.")
        self.engine = engine
        self.store = store
        toolbox = tools if isinstance(tools, Toolbox) else Toolbox(tools, profile=engine.profile)
        self.toolbox = toolbox.for_model()
        self.instructions = instructions
        self.sampling = sampling or Sampling()
        self.defer = defer
        self.grounded = grounded
        self.max_steps = max_steps
        self.index_tokens = index_tokens
        self.page_chars = page_chars or max(1_000, min(6_000, engine.context_window // 2))
        self.raw_steps = raw_steps
        self.cache_salt = cache_salt
        self._listener = listener
        self._on_step = on_step
        self._on_text = on_text
        self._streams = on_text is not None and defer == "strict" and engine.profile != "outlines"
        self._clock = clock
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def run(
        self,
        text: str,
        *,
        space: str = "default",
        date: str | None = None,
        cause: Cause | None = None,
    ) -> RequestResult:
        """Run one request to its end.

        Args:
            text: what to do.
            space: the memory to use; a new name begins a new one.
            date: today's date as the model should see it (any text), or None.
            cause: the task step that asks, if one does; kept with the request and told to its tools.

        Raises:
            UsageError: the request is empty, or the space's name is bad.
            PromptTooLong: the request doesn't fit the model's window; nothing was written.
            StoreBusy: the space has an unfinished request; resume or abandon it first.
            EngineError: the engine failed; the request can be resumed.
        """
        check_space_name(space)
        if not text.strip():
            raise UsageError("the request is empty", hint="Say what the agent should do.")
        async with self._locks[space]:
            head = self.store.head(space)
            if head.open_request is not None:
                raise StoreBusy(
                    f"space {space!r} has an unfinished request {head.open_request}",
                    hint="Resume it (`flowstate run --resume`) or give it up (`flowstate run --abandon`).",
                )
            started = RequestStarted(
                request=RequestId(f"r{head.requests + 1}"),
                step=0,
                at=self._clock(),
                text=text,
                date=date,
                tools=tuple(self.toolbox.names),
                space_version=head.version,
                first_node=head.nodes + 1,
                first_evidence=head.evidence + 1,
                cause=cause,
            )
            run = self._open(space, head, [started], first_seq=head.seq + 1)
            beginning = [started, *self._beginning(run)]
            for event in beginning[1:]:
                run.state.apply(event)
            self._check_room(run)
            await self._commit(run, [*beginning, self._next_step(run)], applied=len(beginning))
            return await self._steps(run)

    async def resume(self, space: str = "default") -> RequestResult | None:
        """Go on with the unfinished request of a space; None if there is none.

        A tool call that was started and has no result is run again with the same idempotency key if its tool is
        idempotent; any other comes back to the model as a failure of kind "unknown_outcome". A request that waits
        for an external tool goes on waiting.
        """
        async with self._locks[check_space_name(space)]:
            run = self._reopen(space)
            if run is None:
                return None
            run.waiting = _awaited(run.state)
            if run.waiting is None:
                if run.state.pending_call is not None:
                    await self._settle(run, run.state.pending_call)
                await self._go_on(run)
            return await self._steps(run)

    async def supply(
        self,
        space: str,
        evidence: EvidenceId,
        result: bytes | str,
        *,
        failure: ToolFailure | None = None,
        duration_s: float = 0.0,
    ) -> RequestResult:
        """Bring the result of an external tool, and go on until the request ends or waits again.

        Args:
            space: where the request waits.
            evidence: id of the call, `RequestResult.call.evidence`.
            result: what the tool brought, kept byte for byte; on a failure its text.
            failure: how it failed, if it did.
            duration_s: how long it took, as far as is known.

        Raises:
            UsageError: nothing waits there for the result of that call; a result that was brought before is refused.
            EngineError: the engine failed; the result is kept, and the request can be resumed.
        """
        async with self._locks[check_space_name(space)]:
            run = self._reopen(space)
            awaited = _awaited(run.state) if run is not None else None
            if run is None or awaited is None or awaited.evidence != evidence:
                waits = f"it waits for {awaited.evidence}" if awaited else "no request waits there"
                raise UsageError(f"space {space!r} needs no result of {evidence}: {waits}")
            raw = result.encode("utf-8", "backslashreplace") if isinstance(result, str) else result
            finished = self._finished(awaited, ToolResult(raw=raw, failure=failure, duration_s=duration_s))
            await self._commit(run, [finished], {finished.digest: raw})
            await self._go_on(run)
            return await self._steps(run)

    async def abandon(self, space: str = "default") -> RequestResult | None:
        """End the unfinished request of a space as "cancelled", keeping its nodes; None if there is none."""
        async with self._locks[check_space_name(space)]:
            run = self._reopen(space)
            if run is None:
                return None
            await self._finish(run, [], "cancelled", "given up")
            return self._result(run)

    # --- the step -----------------------------------------------------------------------------------------

    async def _steps(self, run: _Run) -> RequestResult:
        with logs.bound(space=run.space, request=run.state.request):
            while run.state.finished is None and run.waiting is None:
                await self._step(run)
        return self._result(run)

    async def _step(self, run: _Run) -> None:
        run.trace, begun = [], time.perf_counter()
        prompt = self._prompt(run)
        before = time.perf_counter()
        constraint, sampling = self._constraint(run, prompt)
        asked = time.perf_counter()
        completion = await self._generate(prompt, constraint, sampling)
        answered = time.perf_counter()
        output, replied = read_reply(completion, prompt, run.state, at=self._clock())
        if output is None:
            await self._after_fault(run, replied)
        else:
            await self._follow(run, output, replied)
        if self._on_step is not None:
            self._on_step(
                StepTrace(
                    request=run.state.request,
                    step=replied.step,
                    prompt=prompt,
                    completion=completion,
                    output=output,
                    events=tuple(run.trace),
                    total_s=time.perf_counter() - begun,
                    grammar_s=asked - before,
                    engine_s=answered - asked,
                )
            )

    async def _follow(self, run: _Run, output: StepOutput, replied: ModelReplied) -> None:
        """ISU, PSA, then act, reply, or neither: what a legal output leads to."""
        state, at = run.state, self._clock()
        committed = isu.commit(output.state_delta, state, run.reader, at=at, grounded=self.grounded)
        granted = psa.grant(
            output.state_focus, state, run.reader, run.index, page_chars=self.page_chars, at=at
        )
        calls, message, deferred = decide(output, state, self.defer, baseless=isu.baseless([committed]))
        granted = granted.model_copy(update={"refused": (*granted.refused, *deferred)})
        changed = _changes_something(committed) or _changes_something(granted)
        events: list[Event] = [replied, *(e for e in (committed, granted) if _says_something(e))]
        if message:
            if self._on_text is not None and not self._streams:
                self._on_text(message)
            await self._finish(run, events, "replied", message)
        elif calls:
            await self._act(run, events, calls)
        elif not changed and run.stalls + 1 >= 2 * STALL_LIMIT:
            await self._finish(run, events, "no_progress", "The model went round in circles.")
        else:
            await self._next(run, events)

    def _constraint(self, run: _Run, prompt: Prompt) -> tuple[Constraint, Sampling]:
        room = self.engine.context_window - len(prompt.ids)
        max_tokens = min(self.sampling.max_tokens, room)
        facts = self._facts(run, room)
        constraint = step_constraint(self.engine.profile, self.toolbox, facts, max_tokens)
        return constraint, Sampling(
            self.sampling.temperature, self.sampling.top_p, max_tokens, self.sampling.seed
        )

    async def _generate(self, prompt: Prompt, constraint: Constraint, sampling: Sampling) -> Completion:
        if not self._streams:
            return await complete(self.engine, prompt.ids, constraint, sampling, cache_salt=self.cache_salt)
        message, completion = MessageStream(), None
        chunks = self.engine.stream(prompt.ids, constraint, sampling, cache_salt=self.cache_salt)
        async for chunk in chunks:
            if (text := message.feed(chunk.text)) and self._on_text is not None:
                self._on_text(text)
            completion = chunk.completion or completion
        assert completion is not None, "an engine must end its stream with a completion"
        return completion

    def _must_end(self, run: _Run, room: int) -> bool:
        """Whether steps, progress or room leave nothing but a reply."""
        return (
            run.state.step >= self.max_steps
            or run.stalls >= STALL_LIMIT
            or room < self.engine.context_window // 8
        )

    def _facts(self, run: _Run, room: int) -> StepFacts:
        """What the grammar of this step may name and allow."""
        return rails.facts(
            run.state,
            run.reader,
            run.index,
            run.last_step,
            has_tools=len(self.toolbox) > 0,
            last_shape=run.last_shape,
            must_end=self._must_end(run, room),
            page_chars=self.page_chars,
            defer=self.defer,
        )

    async def _after_fault(self, run: _Run, replied: ModelReplied) -> None:
        """An output of which nothing is committed: ask again, a few times."""
        faults = 1
        for earlier in reversed(run.state.replies):
            if not earlier.fault:
                break
            faults += 1
        if faults >= MAX_FAULTS:
            await self._finish(
                run, [replied], "failed", f"The model's output was {replied.fault}, {faults} times."
            )
        else:
            await self._next(run, [replied])

    async def _next(self, run: _Run, events: Sequence[Event], blobs: dict[str, bytes] | None = None) -> None:
        """Commit the end of this step together with the start of the next, or end the request."""
        if run.state.step >= self.max_steps:
            if events:
                await self._commit(run, events, blobs)
            await self._finish(run, [], "step_budget", f"No reply within {self.max_steps} steps.")
        else:
            await self._commit(run, [*events, self._next_step(run)], blobs)
            room = self.engine.context_window - len(self._prompt(run).ids)
            if room < MIN_STEP_TOKENS:
                await self._finish(run, [], "failed", "The model's window is full.")

    def _next_step(self, run: _Run) -> StepStarted:
        return StepStarted(request=run.state.request, step=run.state.step + 1, at=self._clock())

    # --- tools --------------------------------------------------------------------------------------------

    async def _act(self, run: _Run, events: Sequence[Event], calls: Sequence[ToolCall]) -> None:
        """Run the calls one after the other; each start is durable before it runs, each end before what follows."""
        pending: list[Event] = list(events)
        blobs: dict[str, bytes] = {}
        for call in calls:
            started = self._start(run, call)
            await self._commit(run, [*pending, started], blobs)
            if started.external:
                run.waiting = started
                return
            finished, raw = await self._run_tool(run, started)
            pending, blobs = [finished], {finished.digest: raw}
        await self._next(run, pending, blobs)

    def _start(self, run: _Run, call: ToolCall) -> ToolStarted:
        tool = self.toolbox.get(call.name)
        return ToolStarted(
            request=run.state.request,
            step=run.state.step,
            at=self._clock(),
            evidence=EvidenceId(f"t{run.state.next_evidence}"),
            name=call.name,
            arguments=call.arguments,
            idempotency_key=uuid.uuid4().hex,
            idempotent=tool.idempotent if tool is not None else True,
            # Arguments that can't be right never leave the house: the model is told at once.
            external=tool is not None and tool.external and _can_bind(tool, call),
        )

    async def _run_tool(self, run: _Run, started: ToolStarted) -> tuple[ToolFinished, bytes]:
        context = ToolContext(
            idempotency_key=started.idempotency_key,
            space=run.space,
            request=started.request,
            evidence=started.evidence,
            task=run.state.cause.task if run.state.cause else "",
            step=run.state.cause.step if run.state.cause else "",
        )
        result = await self.toolbox.run(ToolCall(name=started.name, arguments=started.arguments), context)
        return self._finished(started, result), result.raw

    def _finished(self, started: ToolStarted, result: ToolResult) -> ToolFinished:
        return ToolFinished(
            request=started.request,
            step=started.step,
            at=self._clock(),
            evidence=started.evidence,
            name=started.name,
            digest=digest(result.raw),
            size_bytes=len(result.raw),
            size_chars=len(result.raw.decode(errors="replace")),
            failure=result.failure,
            duration_s=result.duration_s,
        )

    async def _settle(self, run: _Run, started: ToolStarted) -> None:
        """Give the call that a crash interrupted a result: run it again only if that is harmless."""
        if started.idempotent:
            finished, raw = await self._run_tool(run, started)
        else:
            message = f"{started.name} was interrupted; whether it took effect is unknown. Check before repeating it."
            failure = ToolFailure(kind="unknown_outcome", message=message)
            raw = message.encode()
            finished = self._finished(started, ToolResult(raw=raw, failure=failure, duration_s=0.0))
        await self._commit(run, [finished], {finished.digest: raw})

    async def _go_on(self, run: _Run) -> None:
        """Do what the interrupted step had still to do, so that the next thing is to ask the model."""
        replied = next((e for e in run.recent if isinstance(e, ModelReplied)), None)
        if replied is None:
            return
        output = None if replied.fault else parse(replied.text)
        started = sum(isinstance(e, ToolStarted) for e in run.recent)
        baseless = isu.baseless(run.recent)
        calls = decide(output, run.state, self.defer, baseless=baseless)[0] if output is not None else []
        await self._act(run, [], calls[started:])

    # --- begin, end, commit -------------------------------------------------------------------------------

    def _beginning(self, run: _Run) -> Sequence[Event]:
        """What happens between the start of a request and its first step: nothing, but in an ablation."""
        return ()

    def _open(self, space: str, head: Head, events: Iterable[Event], *, first_seq: int) -> _Run:
        reader = self.store.reader(space)
        state = ActiveState()
        events = list(events)
        for event in events:
            state.apply(event)
        index = self._index(reader, head)
        context = Context.open(
            self.engine.tokenizer,
            reader,
            tools=self.toolbox.canonical,
            instructions=self.instructions,
            index=index,
            text=state.text,
            date=state.date,
            page_chars=self.page_chars,
        )
        run = _Run(space, head, reader, index, state, context, first_seq)
        run.raw = deque(maxlen=self.raw_steps)
        run.note_steps(events)
        return run

    def _index(self, reader: Reader, head: Head) -> Index:
        encode = fixed(self.engine.tokenizer)
        return index_module.load_within(
            reader,
            floor=head.index_floor,
            last_request=head.version,
            budget=self.index_tokens,
            count=lambda line: len(encode(line)),
        )

    def _reopen(self, space: str) -> _Run | None:
        """Fold the log of the unfinished request into a run that stands where it was left."""
        head = self.store.head(space)
        if head.open_request is None:
            return None
        events = [
            e for e in self.store.events(space, after=head.open_seq - 1) if e.request == head.open_request
        ]
        return self._open(space, head, events, first_seq=head.open_seq)

    def _prompt(self, run: _Run) -> Prompt:
        observation = observe(run.last_step, run.state.step, self.max_steps, self._advice(run))
        return serialize(run.context, run.state, observation, run.raw)

    def _advice(self, run: _Run) -> str:
        return rails.advice(run.state, run.last_step)

    def _check_room(self, run: _Run) -> None:
        n_tokens = len(self._prompt(run).ids)
        if n_tokens + MIN_STEP_TOKENS > self.engine.context_window:
            raise PromptTooLong(
                f"the request makes a prompt of {n_tokens} tokens; the window of {self.engine.model} is "
                f"{self.engine.context_window} tokens, of which a step needs {MIN_STEP_TOKENS}"
            )

    async def _commit(
        self, run: _Run, events: Sequence[Event], blobs: dict[str, bytes] | None = None, *, applied: int = 0
    ) -> None:
        """Make events durable, then take them in; the first `applied` are in the state already."""
        head = run.head
        run.head = await asyncio.to_thread(
            self.store.append, run.space, events, blobs or {}, expected_seq=head.seq
        )
        self._take_in(run, events, head.seq, applied)

    def _take_in(self, run: _Run, events: Sequence[Event], after: int, applied: int = 0) -> None:
        for event in events[applied:]:
            run.state.apply(event)
        run.note_steps(events)
        run.trace.extend(events)
        if self._listener is not None:
            self._listener(numbered(events, after))

    async def _finish(self, run: _Run, events: Sequence[Event], outcome: str, message: str) -> None:
        """Persist: nodes, cited raw results, the request and its index lines, in one transaction."""
        for event in events:
            run.state.apply(event)
        state = run.state
        nodes = list(state.own.values())
        cited = [e for e in state.results if any(e in node.evidence for node in nodes)]
        finished = RequestFinished.model_validate(
            {
                "request": state.request,
                "step": state.step,
                "at": self._clock(),
                "outcome": outcome,
                "message": message,
                "nodes": [node.id for node in nodes],
                "evidence": cited,
            }
        )
        record = RequestRecord(
            id=state.request,
            text=state.text,
            date=state.date,
            outcome=outcome,
            message=message,
            nodes=finished.nodes,
            evidence=finished.evidence,
            first_seq=run.first_seq,
            last_seq=0,
            steps=state.step,
            at=finished.at,
        )
        done = FinishedRequest(
            record=record,
            nodes=nodes,
            evidence=[_evidence_record(state, e) for e in cited],
            events=[*events, finished],
            index_floor=run.index.floor,
        )
        before = run.head
        run.head = await asyncio.to_thread(
            self.store.persist,
            run.space,
            done,
            expected_version=before.version,
            expected_seq=before.seq,
        )
        self._take_in(run, [*events, finished], before.seq, applied=len(events))

    def _result(self, run: _Run) -> RequestResult:
        state = run.state
        faults: dict[str, int] = {}
        for reply in state.replies:
            if reply.fault:
                faults[reply.fault] = faults.get(reply.fault, 0) + 1
        return RequestResult(
            request=state.request,
            outcome=state.finished.outcome if state.finished else "waiting",
            message=state.finished.message if state.finished else "",
            nodes=state.finished.nodes if state.finished else tuple(state.own),
            steps=len(state.replies),
            prompt_tokens=sum(r.prompt_tokens for r in state.replies),
            cached_tokens=sum(r.cached_tokens for r in state.replies),
            generated_tokens=sum(r.generated_tokens for r in state.replies),
            faults=faults,
            call=run.waiting,
        )


def _awaited(state: ActiveState) -> ToolStarted | None:
    """The external call that the request waits for, if it does."""
    pending = state.pending_call
    return pending if pending is not None and pending.external else None


def _can_bind(tool: Tool, call: ToolCall) -> bool:
    try:
        tool.bind(call.arguments)
    except ToolError:
        return False
    return True


def _changes_something(event: Event) -> bool:
    if isinstance(event, DeltaCommitted):
        return bool(event.added or event.updated or event.removed)
    return isinstance(event, ToolStarted) or (isinstance(event, Disclosed) and bool(event.granted))


def _says_something(event: DeltaCommitted | Disclosed) -> bool:
    if isinstance(event, DeltaCommitted):
        return bool(event.added or event.updated or event.removed or event.refused)
    return bool(event.granted or event.refused)


def _evidence_record(state: ActiveState, evidence: EvidenceId) -> EvidenceRecord:
    result = state.results[evidence]
    return EvidenceRecord(
        id=evidence,
        digest=result.digest,
        size_bytes=result.size_bytes,
        size_chars=result.size_chars,
        tool=result.name,
        request=state.request,
        step=result.step,
    )
