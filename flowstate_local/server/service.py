"""What the routes call: one turn of a conversation in a space of a tenant."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowstate_local import logs
from flowstate_local.completion import Sampling
from flowstate_local.engines.base import Engine
from flowstate_local.errors import UsageError
from flowstate_local.events import Cause, Event
from flowstate_local.history import cause_of
from flowstate_local.loop import Agent, RequestResult
from flowstate_local.nodes import RequestId
from flowstate_local.repository import RequestRecord
from flowstate_local.server.admission import Admission, Limits
from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.conversation import Turn, read_call_id
from flowstate_local.server.observe import Observer, TurnWatch
from flowstate_local.server.spaces import SpaceRef, spaces_of
from flowstate_local.server.tenants import Caller, Scope, Tenant, Tenants
from flowstate_local.server.timed_store import timed
from flowstate_local.stores.base import Store
from flowstate_local.tools import Tool, Toolbox

RETRY_TASK = "http"
"""`Cause.task` of requests that came with an idempotency key."""
LOOK_BACK = 5
"""Requests among which the one of a repeated idempotency key is looked for."""


@dataclass(frozen=True)
class TurnOptions:
    """How a turn runs, and who follows it."""

    tools: Sequence[Tool] = ()
    """External ones, of this turn; the server's own are always there."""
    sampling: Sampling = Sampling()
    date: str | None = None
    """Today's date as the model should see it."""
    key: str | None = None
    """Of idempotency; a turn that was answered under it is answered the same again."""
    on_text: Callable[[str], None] | None = None
    """Called with pieces of the reply."""
    on_request: Callable[[RequestId], None] | None = None
    """Called with the id of a new request as soon as it is durable."""

    @property
    def cause(self) -> Cause | None:
        """What the log says of the key."""
        return Cause(task=RETRY_TASK, step=self.key, idempotency_key=self.key) if self.key else None


@dataclass
class Service:
    """Engine, store and tenants behind the routes.

    Args:
        engine: the model.
        store: all memories.
        tenants: who may use it.
        toolbox: tools that the server runs.
        limits: what it takes on.
        observer: told of everything.
        model: what clients see as its name; by default the engine's, without the folder where it lies.
    """

    engine: Engine
    store: Store
    tenants: Tenants
    toolbox: Toolbox
    limits: Limits = Limits()
    observer: Observer = field(default_factory=Observer)
    model: str = ""
    _working: set["asyncio.Future[RequestResult]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        name = self.model or self.engine.model
        self.model = os.path.basename(name) if os.path.isabs(name) else name
        self.store = timed(self.store, self.observer.store)
        self.admission = Admission(self.limits, self.tenants, self.store, self.observer)

    def caller(self, authorization: str | None, scope: Scope) -> Caller:
        """Who sent a request, if its key may do that.

        Raises:
            ApiError: 401 without a good key, 403 with one of a lesser scope.
        """
        kind, _, key = (authorization or "").partition(" ")
        caller = self.tenants.caller(key.strip()) if kind.lower() == "bearer" and key.strip() else None
        if caller is None:
            raise ApiError(
                401,
                "the API key is missing, unknown, revoked or expired",
                type="authentication_error",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if not caller.may(scope):
            raise ApiError(
                403,
                f"this key may {caller.scope}, not {scope}",
                type="permission_error",
                code="insufficient_scope",
            )
        logs.add(tenant=caller.tenant.name, key=caller.key)
        return caller

    async def erase_tenant(self, tenant: Tenant) -> None:
        """Forget a tenant with all its spaces. Its keys go first, so that nothing new begins."""
        self.tenants.delete(tenant)
        for space in spaces_of(self.store, tenant):
            await asyncio.to_thread(self.store.erase_space, space.stored)

    def in_background(self, turn: Coroutine[Any, Any, RequestResult]) -> "asyncio.Future[RequestResult]":
        """A turn that goes on whoever waits for it."""
        work = asyncio.ensure_future(turn)
        self._working.add(work)
        work.add_done_callback(self._forget)
        return work

    def _forget(self, work: "asyncio.Future[RequestResult]") -> None:
        self._working.discard(work)
        if not work.cancelled():
            work.exception()  # who waited has it; if nobody did, it must not be reported as never retrieved

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, and let what is under way end; what doesn't is resumed by its client after a restart."""
        self.admission.draining = True
        if self._working:
            await asyncio.wait(self._working, timeout=timeout_s)
        for late in list(self._working):
            late.cancel()

    # --- a turn ---------------------------------------------------------------------------------------------

    async def turn(self, caller: Caller, space: SpaceRef, turn: Turn, how: TurnOptions) -> RequestResult:
        """Take what is new of a conversation to its reply, or to a call that the client runs.

        Args:
            caller: who asks; its quota pays.
            space: the memory.
            turn: what is new.
            how: tools, decoding, and who follows it.

        Raises:
            ApiError: over a quota or a limit, or a result of a call that nothing waits for.
            FlowStateError: whatever the agent raises.
        """
        with (
            logs.bound(space=space.stored),
            self.observer.turn(space.stored, self.model, how.sampling) as watch,
        ):
            async with self.admission.admitted(caller, space):
                cause = how.cause
                known = self._answered(space, cause) if cause else None
                if known is not None:
                    result = _result_of(known)
                else:
                    agent = self._agent(caller, turn, how, watch)
                    result = await self._in_time(self._go_on(agent, space, turn, how.date, cause))
                self.tenants.spend(caller.tenant, result.prompt_tokens + result.generated_tokens)
            watch.ended(result)
            return result

    def _agent(self, caller: Caller, turn: Turn, how: TurnOptions, watch: TurnWatch) -> Agent:
        def tell(events: Sequence[Event]) -> None:
            watch.events(events)
            if how.on_request is not None and events[0].kind == "RequestStarted":
                how.on_request(events[0].request)

        own = list(self.toolbox)
        return Agent(
            self.engine,
            self.store,
            [*own, *_without(how.tools, own)],
            instructions=turn.instructions,
            sampling=how.sampling,
            max_steps=self.limits.max_steps,
            cache_salt=caller.tenant.id,
            listener=tell,
            on_step=watch.step,
            on_text=how.on_text,
        )

    async def _in_time(self, work: Coroutine[Any, Any, RequestResult]) -> RequestResult:
        try:
            return await asyncio.wait_for(work, self.limits.timeout_s)
        except TimeoutError:
            raise ApiError(
                504,
                f"no reply within {self.limits.timeout_s:g} s; the same request goes on with it",
                type="server_error",
                code="timeout",
            ) from None

    async def _go_on(
        self, agent: Agent, space: SpaceRef, turn: Turn, date: str | None, cause: Cause | None
    ) -> RequestResult:
        result: RequestResult | None = None
        for said, text in turn.results.items():
            result = await self._supplied(agent, space, said, text)
        if turn.text and (result is None or result.outcome != "waiting"):
            result = await self._asked(agent, space, turn.text, date, cause)
        assert result is not None, "a turn holds a text or results"
        return result

    async def _asked(
        self, agent: Agent, space: SpaceRef, text: str, date: str | None, cause: Cause | None
    ) -> RequestResult:
        """A new request; or the unfinished one, if it is the same that a crash interrupted."""
        head = self.store.head(space.stored)
        if head.open_request is not None:
            first = next(
                iter(self.store.events(space.stored, after=head.open_seq - 1, upto=head.open_seq)), None
            )
            if getattr(first, "text", None) == text:
                resumed = await agent.resume(space.stored)
                if resumed is not None:
                    return resumed
            else:  # the conversation went on without it
                await agent.abandon(space.stored)
        return await agent.run(text, space=space.stored, date=date, cause=cause)

    async def _supplied(self, agent: Agent, space: SpaceRef, said: str, text: str) -> RequestResult:
        """The result of a client's tool; one that came before a crash or twice goes on from where it is."""
        request, evidence = read_call_id(said)
        head = self.store.head(space.stored)
        if head.open_request == request:
            waiting = await agent.resume(space.stored)
            if waiting is None or waiting.call is None or waiting.call.evidence != evidence:
                if waiting is not None:
                    return waiting
                raise unknown_call(said)
            return await agent.supply(space.stored, evidence, text)
        record = self.store.reader(space.stored).request(request)
        if record is None or head.open_request is not None:
            raise unknown_call(said)
        return _result_of(record)

    def _answered(self, space: SpaceRef, cause: Cause) -> RequestRecord | None:
        """The request that was asked under this key, if it has ended."""
        last = self.store.head(space.stored).requests
        for record in self.store.requests(space.stored, first=max(1, last - LOOK_BACK + 1)):
            first = self.store.events(space.stored, after=record.first_seq - 1, upto=record.first_seq)
            if cause_of(first) == cause:
                return record
        return None


def unknown_call(said: str) -> ApiError:
    """For a result that nothing waits for."""
    return ApiError(
        400, f"nothing waits for the result of {said!r}", code="unknown_tool_call", param="messages"
    )


def _without(tools: Iterable[Tool], own: Iterable[Tool]) -> list[Tool]:
    names = {tool.name for tool in own}
    tools = list(tools)
    taken = [tool.name for tool in tools if tool.name in names]
    if taken:
        raise UsageError(f"the server has a tool {taken[0]!r} of its own", hint="Give yours another name.")
    return tools


def _result_of(record: RequestRecord) -> RequestResult:
    """A request that ended earlier, as its result; it costs nothing a second time."""
    return RequestResult(
        request=record.id,
        outcome=record.outcome,
        message=record.message,
        nodes=record.nodes,
        steps=record.steps,
        prompt_tokens=0,
        cached_tokens=0,
        generated_tokens=0,
        faults={},
    )
