"""Who may begin when: rates, quotas, places in the engine, one turn at a time in a space."""

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from flowstate_local.errors import StoreBusy
from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.observe import Observer
from flowstate_local.server.spaces import SpaceRef, spaces_of
from flowstate_local.server.tenants import Caller, Tenant, Tenants
from flowstate_local.stores.base import Store

WRITE_WAIT_S = 5.0
"""How long a write without the model waits for the turn that goes on in its space."""
SIZE_AGE_S = 10.0
"""For how long a count of bytes is good enough."""


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


@dataclass
class Admission:
    """Turns away what is too much, before the engine drowns, and lets the rest in as there is room.

    Args:
        limits: what the server takes on.
        tenants: whose quotas count.
        store: whose bytes count.
        observer: told of what was turned away.
        clock: seconds, monotonic.
    """

    limits: Limits
    tenants: Tenants
    store: Store
    observer: Observer
    clock: Callable[[], float] = time.monotonic
    draining: bool = False
    """Nothing new is let in."""
    n_waiting: int = 0
    n_running: int = 0
    _locks: "WeakValueDictionary[str, asyncio.Lock]" = field(default_factory=WeakValueDictionary)
    """Of spaces with a turn; who holds or awaits one keeps it here."""
    _of_tenant: Counter[str] = field(default_factory=Counter)
    """Turns that wait or run."""
    _bytes_of: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When the bytes of a tenant were counted, and how many they were."""
    _recent: defaultdict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque))
    """When a tenant's requests of the last minute came, if they are limited."""

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.max_running)

    @asynccontextmanager
    async def admitted(self, caller: Caller, space: SpaceRef) -> AsyncIterator[None]:
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
            spaces = spaces_of(self.store, tenant)
            size_bytes = sum(self.store.size_bytes_of(space.stored) for space in spaces)
            self._bytes_of[tenant.id] = self.clock(), size_bytes
        return size_bytes

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


def _too_many(message: str, code: str, retry_after_s: float) -> ApiError:
    headers = {"Retry-After": str(max(1, round(retry_after_s)))}
    return ApiError(429, message, type="rate_limit_error", code=code, headers=headers)
