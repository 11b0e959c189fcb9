"""What the routes call: one turn of a conversation in a space of a tenant, admitted or turned away."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from flowstate_local import logs
from flowstate_local.completion import Sampling
from flowstate_local.engines.base import Engine
from flowstate_local.errors import StoreBusy, UsageError
from flowstate_local.events import Cause, Event
from flowstate_local.history import cause_of
from flowstate_local.loop import Agent, RequestResult
from flowstate_local.nodes import RequestId
from flowstate_local.repository import RequestRecord
from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.conversation import Turn, read_call_id
from flowstate_local.server.observe import Observer, TurnWatch
from flowstate_local.server.tenants import SHARED, Caller, Scope, Tenant, Tenants
from flowstate_local.server.timed_store import timed
from flowstate_local.stores.base import MAX_SPACE_BYTES, Store, check_space_name
from flowstate_local.tools import Tool, Toolbox

JOIN = "."
"""Between the id of a tenant and the name of its space; ids have a fixed length, so no two pairs make one name."""
DEFAULT_SPACE = "default"
WRITE_WAIT_S = 5.0
"""How long a write without the model waits for the turn that goes on in its space."""
RETRY_TASK = "http"
"""`Cause.task` of requests that came with an idempotency key."""
SIZE_AGE_S = 10.0
"""For how long a count of bytes is good enough."""
LOOK_BACK = 5
"""Requests among which the one of a repeated idempotency key is looked for."""


@dataclass(frozen=True)
class Limits:
    """What the server takes on."""

    max_running: int = 64
    """Turns in the engine at once."""
    max_waiting: int = 256
    """Turns that wait for one of those places, or for their space; more are turned away."""
    max_per_tenant: int = 128
    """Turns of one tenant that wait or run, so that none can keep all others out."""
    max_body_bytes: int = 2_000_000
    max_import_bytes: int = 500_000_000
    """Of an exported space that comes back; it is held in memory while it is read."""
    timeout_s: float = 600.0
    """Of a turn."""
    max_steps: int = 16

    def body_bytes_of(self, path: str) -> int:
        """How large the body of a request may be."""
        return self.max_import_bytes if path.endswith("/import") else self.max_body_bytes


@dataclass(frozen=True)
class SpaceRef:
    """A space as its caller may use it."""

    owner: Tenant
    name: str
    """As the owner calls it."""
    may_write: bool

    @property
    def stored(self) -> str:
        """Its name in the store."""
        return f"{self.owner.id}{JOIN}{self.name}"


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
        clock: seconds, monotonic.
    """

    engine: Engine
    store: Store
    tenants: Tenants
    toolbox: Toolbox
    limits: Limits = Limits()
    observer: Observer = field(default_factory=Observer)
    clock: Callable[[], float] = time.monotonic
    draining: bool = False
    n_waiting: int = 0
    n_running: int = 0
    _locks: "WeakValueDictionary[str, asyncio.Lock]" = field(default_factory=WeakValueDictionary)
    """Of spaces with a turn; who holds or awaits one keeps it here."""
    _of_tenant: Counter[str] = field(default_factory=Counter)
    """Turns that wait or run."""
    _bytes_of: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When the bytes of a tenant were counted, and how many they were."""
    _recent: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    _working: set["asyncio.Future[RequestResult]"] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.max_running)
        self.store = timed(self.store, self.observer.store)

    # --- who may --------------------------------------------------------------------------------------------

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

    def space(self, caller: Caller, name: str, *, write: bool) -> SpaceRef:
        """A space of the caller, or one that is shared with it, as "OWNER~SPACE".

        What belongs to others and what doesn't exist look the same.

        Raises:
            ApiError: 404 where it may not be used.
            BadSpaceName: no space can be called that.
        """
        owner, is_shared, rest = name.partition(SHARED)
        if is_shared:
            shared = self.tenants.shared_with(caller.tenant, owner, rest)
            if shared is None or (write and not shared[1]):
                raise unknown_space(name)
            return SpaceRef(shared[0], rest, shared[1])
        check_space_name(name)
        ref = SpaceRef(caller.tenant, name, may_write=True)
        if len(ref.stored.encode()) > MAX_SPACE_BYTES:
            most = MAX_SPACE_BYTES - len(f"{caller.tenant.id}{JOIN}")
            raise ApiError(400, f"the name of a space may have {most} bytes", code="bad_space_name")
        return ref

    def spaces(self, caller: Caller) -> list[str]:
        """Names of the caller's own spaces."""
        prefix = f"{caller.tenant.id}{JOIN}"
        return [name.removeprefix(prefix) for name in self.store.spaces() if name.startswith(prefix)]

    async def erase_tenant(self, tenant: Tenant) -> None:
        """Forget a tenant with all its spaces. Its keys go first, so that nothing new begins."""
        self.tenants.delete(tenant)
        prefix = f"{tenant.id}{JOIN}"
        for name in [name for name in self.store.spaces() if name.startswith(prefix)]:
            await asyncio.to_thread(self.store.erase_space, name)

    def check_bytes(self, tenant: Tenant, more: int = 0) -> None:
        """Raise ApiError if the spaces of a tenant take more room than its quota, with `more` bytes to come."""
        most = tenant.quota.max_bytes
        if most is not None and self._stored_bytes(tenant) + more > most:
            raise ApiError(
                429,
                f"{most:,} bytes are allowed; erase something",
                type="rate_limit_error",
                code="storage_quota",
            )

    def _stored_bytes(self, tenant: Tenant) -> int:
        """As counted within the last seconds: counting reads all keys of the tenant."""
        counted_at, size_bytes = self._bytes_of.get(tenant.id, (-SIZE_AGE_S, 0))
        if self.clock() - counted_at >= SIZE_AGE_S:
            prefix = f"{tenant.id}{JOIN}"
            names = [name for name in self.store.spaces() if name.startswith(prefix)]
            size_bytes = sum(map(self.store.size_bytes_of, names))
            self._bytes_of[tenant.id] = self.clock(), size_bytes
        return size_bytes

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
        self.draining = True
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
            self.observer.turn(space.stored, self.engine.model, how.sampling) as watch,
        ):
            async with self._admitted(caller, space):
                cause = how.cause
                known = self._answered(space, cause) if cause else None
                if known is not None:
                    return _result_of(known)
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

    # --- admission ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _admitted(self, caller: Caller, space: SpaceRef) -> AsyncIterator[None]:
        """Turn away what is too much, before the engine drowns; then wait for the space, and for a place.

        In this order: who waits for a busy space of their own takes no place from others.
        """
        try:
            self._check_room(caller.tenant)
        except ApiError as error:
            self.observer.rejected(str(error.code))
            raise
        lock = self._locks.setdefault(space.stored, asyncio.Lock())
        self._of_tenant[caller.tenant.id] += 1
        self.n_waiting += 1
        waiting = True
        try:
            async with lock, self._places:
                self.n_waiting -= 1
                waiting = False
                self.n_running += 1
                try:
                    yield
                finally:
                    self.n_running -= 1
        finally:
            self.n_waiting -= waiting
            self._of_tenant[caller.tenant.id] -= 1

    def _check_room(self, tenant: Tenant) -> None:
        if self.draining:
            raise ApiError(
                503,
                "the server is shutting down",
                type="server_error",
                code="draining",
                headers={"Retry-After": "5"},
            )
        self._check_rate(tenant)
        self._check_quota(tenant)
        self.check_bytes(tenant)
        if self.n_waiting >= self.limits.max_waiting:
            raise _too_many("the server is busy", "busy", 1)
        if self._of_tenant[tenant.id] >= self.limits.max_per_tenant:
            raise _too_many(f"{self.limits.max_per_tenant} turns at once are allowed", "too_many_at_once", 1)

    @asynccontextmanager
    async def writing(self, caller: Caller, space: SpaceRef) -> AsyncIterator[None]:
        """A moment in which no turn begins in the space, for what is written without the model.

        Raises:
            ApiError: over the rate of the tenant.
            StoreBusy: a turn goes on for longer than it is worth waiting.
        """
        self._check_rate(caller.tenant)
        lock = self._locks.setdefault(space.stored, asyncio.Lock())
        try:
            await asyncio.wait_for(lock.acquire(), WRITE_WAIT_S)
        except TimeoutError:
            raise StoreBusy(
                "a request is under way in this memory", hint="Try again when it has ended."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _check_rate(self, tenant: Tenant) -> None:
        most = tenant.quota.requests_per_minute
        recent, now = self._recent[tenant.id], self.clock()
        while recent and recent[0] <= now - 60:
            recent.popleft()
        if most is not None and len(recent) >= most:
            raise _too_many(
                f"{most} requests a minute are allowed", "rate_limit_exceeded", recent[0] + 60 - now
            )
        if most is not None:
            recent.append(now)

    def _check_quota(self, tenant: Tenant) -> None:
        most = tenant.quota.tokens_per_day
        if most is not None and self.tenants.spent_today(tenant) >= most:
            raise _too_many(f"{most:,} tokens a day are allowed", "insufficient_quota", 3_600)


def unknown_space(name: str) -> ApiError:
    """For a space that isn't there, or isn't the caller's."""
    return ApiError(404, f"there is no space {name!r}", code="space_not_found")


def unknown_call(said: str) -> ApiError:
    """For a result that nothing waits for."""
    return ApiError(
        400, f"nothing waits for the result of {said!r}", code="unknown_tool_call", param="messages"
    )


def _too_many(message: str, code: str, retry_after_s: float) -> ApiError:
    headers = {"Retry-After": str(max(1, round(retry_after_s)))}
    return ApiError(429, message, type="rate_limit_error", code=code, headers=headers)


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
