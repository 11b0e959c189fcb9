"""The state manager: the one way in which tasks are made, read and changed.

Every change is a few events, decided on the newest state and appended at the version they were decided on. Who loses
that race decides again. So two writers never undo each other's work, in one process or in many.
"""

import random
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, JsonValue, ValidationError

from flowstate_local.errors import (
    ConflictError,
    CorruptValue,
    StoreBusy,
    UnknownTask,
    UnknownVersion,
    UsageError,
)
from flowstate_local.events import numbered
from flowstate_local.stores.base import Lease, Store, TaskHead, TaskQuery, check_space_name, check_task_id
from flowstate_local.task_events import (
    CancelRequested,
    Parent,
    TaskCreated,
    TaskEvent,
    TaskForked,
    TaskId,
    TaskLogged,
    TaskRecord,
    TaskResultSet,
    TaskStatus,
    TaskStatusChanged,
    TaskUpdated,
    Value,
    WorkflowSpec,
    digests_of,
)
from flowstate_local.task_state import TaskState, changes_between, fold, record_of
from flowstate_local.tasks import leases, values

MAX_TRIES = 10_000
"""Lost races after which a writer gives up: something else must be wrong."""
MAX_CACHED = 1_024
CROWDED = 16
"""Commits after a lost race for which the store is looked at before deciding."""

S = TypeVar("S", bound=BaseModel)
StateMigration = Callable[[dict[str, Any]], dict[str, Any]]


class FreeState(BaseModel, extra="allow"):
    """The user's state of those who declare none: any fields."""


class TaskManager(Generic[S]):
    """The tasks of one space. Safe to use from several threads; several processes may each have one.

    Args:
        store: where everything is kept. The manager does not close it.
        space: whose tasks these are.
        state_type: pydantic model of the user's state. A field `schema_version` with a default numbers its versions.
        state_migrations: version n -> the function that turns a dict of version n into one of version n + 1; run
            when an older state is read.
        clock: seconds since the epoch.
        listener: called after each durable commit with its events.
        snapshot_every: events between two snapshots of a task; reading one folds at most so many.
    """

    def __init__(
        self,
        store: Store,
        space: str = "default",
        *,
        state_type: type[S] | None = None,
        state_migrations: Mapping[int, StateMigration] | None = None,
        clock: Callable[[], float] = time.time,
        listener: Callable[[Sequence[TaskEvent]], None] | None = None,
        snapshot_every: int = 256,
    ) -> None:
        self.store = store
        self.space = check_space_name(space)
        self.clock = clock
        self.listener = listener
        self.conflicts = 0
        """Races this manager lost, and ran again."""
        self._state_type = cast("type[S]", state_type or FreeState)
        self._state_migrations = dict(state_migrations or {})
        self._snapshot_every = snapshot_every
        self._cache: OrderedDict[TaskId, TaskState] = OrderedDict()
        self._crowded = 0
        self._lock = threading.Lock()

    # --- create and read ----------------------------------------------------------------------------------

    def create(
        self,
        workflow: WorkflowSpec,
        params: Mapping[str, JsonValue] | None = None,
        *,
        task: str | None = None,
        owner: str = "",
        state: S | None = None,
        extras: Mapping[str, JsonValue] | None = None,
        parent: Parent | None = None,
    ) -> TaskState:
        """A new task, pending.

        Args:
            workflow: its steps, as `tasks.workflow.load` gives them.
            params: values of the workflow's parameters.
            task: its id; by default the workflow's name and some letters.
            owner: whose it is, for lists.
            state: the user's own state to begin with.
            extras: anything else to be kept with it.
            parent: the step it is a sub-goal of.

        Raises:
            UsageError: an id that can't be one, or values that JSON can't hold.
            ConflictError: there is a task of that id.
        """
        chosen = check_task_id(task or f"{_slug(workflow.name)}-{uuid.uuid4().hex[:8]}")
        own = state if state is not None else self._empty_state()
        event = TaskCreated(
            task=chosen,
            at=self.clock(),
            workflow=workflow,
            params=self._plain("params", dict(params or {})),
            owner=owner,
            state=self._dump_state(own),
            state_version=self._state_version(),
            extras=self._plain("extras", dict(extras or {})),
            parent=parent,
        )
        return self.begin(event)

    def begin(self, event: TaskCreated | TaskForked) -> TaskState:
        """Start a task's log with its first event. Raises ConflictError if there is a task of that id."""
        return self._append(None, [event], {})

    def get(self, task: str) -> TaskState:
        """The newest state of a task. Raises UnknownTask, CorruptValue, UnknownVersion."""
        known = check_task_id(task)
        with self._lock:
            cached = self._cache.get(known)
        head = self._head(known)
        if cached is not None and cached.seq == head.seq:
            return cached
        if cached is None or cached.seq > head.seq or cached.seq < head.floor:
            return self._remember(self._folded(known, head, head.seq))
        newer = self.store.task_events(self.space, known, after=cached.seq, upto=head.seq)
        return self._remember(fold(cached, newer))

    def at(self, task: str, seq: int) -> TaskState:
        """The state of a task just after event `seq`.

        Raises:
            UnknownTask: there's no such task or event, or it was compacted away.
        """
        known = check_task_id(task)
        head = self._head(known)
        if not 1 <= seq <= head.seq:
            raise UnknownTask(f"task {task} has no version {seq}; it has 1 to {head.seq}")
        return self._folded(known, head, seq)

    def events(self, task: str, *, after: int = 0, upto: int | None = None) -> Iterator[TaskEvent]:
        """Events of a task, in order, from where its log begins. Raises UnknownTask."""
        known = check_task_id(task)
        head = self._head(known)
        return self.store.task_events(self.space, known, after=max(after, head.floor), upto=upto)

    def tasks(self, **query: Any) -> Iterator[TaskRecord]:
        """Tasks of this space by `TaskQuery`: owner, status, current_step, created_from, created_before."""
        return self.store.tasks(TaskQuery(space=self.space, **query))

    def load(self, value: Value | None) -> Any:
        """What a value holds; a blob is read only now. None for none. Raises CorruptValue."""
        return None if value is None else values.from_value(value, self.store.reader(self.space))

    def user_state(self, state: TaskState) -> S:
        """The user's state in its type, migrated to the newest version.

        Raises:
            UnknownVersion: a newer release wrote it, or a migration is missing.
            CorruptValue: it isn't what its type says.
        """
        fields: dict[str, Any] = dict(state.state)
        current = self._state_version()
        if state.state_version > current:
            raise UnknownVersion(
                f"state of task {state.id} has version {state.state_version}; known is {current}"
            )
        for version in range(state.state_version, current):
            if version not in self._state_migrations:
                raise UnknownVersion(f"state of task {state.id}: no migration from version {version}")
            fields = self._state_migrations[version](fields)
            if "schema_version" in fields:
                fields["schema_version"] = version + 1
        try:
            return self._state_type.model_validate(fields)
        except ValidationError as error:
            raise CorruptValue(f"state of task {state.id}: {error}") from error

    # --- change -------------------------------------------------------------------------------------------

    def commit(
        self,
        task: str,
        decide: Callable[[TaskState], Sequence[TaskEvent]],
        blobs: Mapping[str, bytes] | None = None,
        *,
        snapshot: bool = False,
    ) -> TaskState:
        """Append what `decide` makes of the newest state; decide again if another writer was first.

        Args:
            task: the task.
            decide: events for this state, or none. Called again after each lost race, so without effects of its own.
            blobs: values the events may name, by digest.
            snapshot: whether to make a snapshot now, although it isn't time for one.

        Returns:
            The state afterwards.

        Raises:
            UnknownTask: there is no such task.
            IllegalTransition: an event can't follow; nothing was written.
            ConflictError: no end of lost races.
        """
        for tries in range(MAX_TRIES):
            state = self._newest(task, look=tries > 0)
            events = decide(state)
            if not events:
                return state
            try:
                after = self._append(state, events, blobs or {}, snapshot=snapshot)
                self._crowded = max(self._crowded - 1, 0)
                return after
            except ConflictError:
                with self._lock:
                    self.conflicts += 1
                self._crowded = CROWDED
                # Losers spread out, or they meet again.
                time.sleep(random.uniform(0, min(0.001 * 2 ** min(tries, 5), 0.02)))
        raise ConflictError(f"task {task}: {MAX_TRIES} tries, and another writer was first each time")

    def update(self, task: str, change: Callable[[S], S | None], *, reason: str = "") -> S:
        """Change the user's state atomically.

        Args:
            task: the task.
            change: gets the newest state, and returns the new one or changes the given one. May be called again if
                another writer was first, so without other effects.
            reason: for the log.

        Raises:
            UsageError: `change` raised, or returned something else than the state's type; nothing was written.
        """
        latest: list[S] = []

        def decide(state: TaskState) -> list[TaskEvent]:
            given = self.user_state(state)
            after = self._changed(task, change, given)
            latest[:] = [after]
            version = self._state_version()
            changes = changes_between(state.state, self._dump_state(after))
            if not changes and version == state.state_version:
                return []
            return [
                TaskUpdated(
                    task=state.id,
                    at=self.clock(),
                    changes=tuple(changes),
                    reason=reason,
                    state_version=version,
                )
            ]

        self.commit(task, decide)
        return latest[0]

    def log_event(
        self, task: str, message: str, *, step: str = "", level: str = "info", **fields: JsonValue
    ) -> TaskState:
        """Note something in the task's log. Raises UnknownTask, UsageError (an unknown step or level)."""
        if level not in ("debug", "info", "warning", "error"):
            raise UsageError(f"unknown level {level!r}", hint="Use debug, info, warning or error.")
        plain = self._plain("fields", fields)

        def decide(state: TaskState) -> list[TaskEvent]:
            if step and step not in state.steps:
                raise UnknownTask(f"task {task} has no step {step!r}")
            return [
                TaskLogged.model_validate(
                    {
                        "task": state.id,
                        "at": self.clock(),
                        "step": step,
                        "level": level,
                        "message": message,
                        "fields": plain,
                    }
                )
            ]

        return self.commit(task, decide)

    def snapshot(self, task: str) -> TaskState:
        """Make a snapshot of the newest state now, with a note in the log that says so."""
        return self.commit(
            task,
            lambda state: [TaskLogged(task=state.id, at=self.clock(), message="snapshot")],
            snapshot=True,
        )

    def set_result(self, task: str, result: Any) -> TaskState:
        """Set what the task hands up. Raises UsageError naming the field that JSON can't hold."""
        blobs: dict[str, bytes] = {}
        value = values.to_value(result, blobs, what=f"the result of task {task}")
        return self.commit(
            task, lambda state: [TaskResultSet(task=state.id, at=self.clock(), result=value)], blobs
        )

    def pause(self, task: str, reason: str = "paused by its operator") -> TaskState:
        """Let nothing more start; steps that run end, and are recorded. Raises IllegalTransition if it has ended."""
        return self.commit(
            task, lambda state: [] if state.status == "paused" else [self.changed_to("paused", state, reason)]
        )

    def cancel(self, task: str, reason: str = "cancelled by its operator") -> TaskState:
        """Ask whoever works on the task to wind it up: stop, undo, fail. At once if there's nothing to wind up."""

        def decide(state: TaskState) -> list[TaskEvent]:
            events: list[TaskEvent] = [CancelRequested(task=state.id, at=self.clock(), reason=reason)]
            if all(step.attempt == 0 for step in state.steps.values()):
                return [*events, self.changed_to("failed", state, reason)]
            # A paused one has to run once more, to be wound up.
            return (
                [*events, self.changed_to("running", state, reason)] if state.status == "paused" else events
            )

        return self.commit(task, decide)

    def changed_to(self, status: TaskStatus, state: TaskState, reason: str) -> TaskStatusChanged:
        """The event that gives a task another status."""
        return TaskStatusChanged(task=state.id, at=self.clock(), status=status, reason=reason)

    @contextmanager
    def lease(self, task: str, *, name: str = "", ttl_s: float = leases.TTL_S) -> Iterator[Lease]:
        """Hold a task alone while the block runs. `renew_lease` it if that takes long.

        Raises:
            UnknownTask: there is no such task.
            StoreBusy: somebody else holds it.
        """
        self.get(task)
        held = leases.take(
            self.store, self.space, check_task_id(task), name=name, ttl_s=ttl_s, now=self.clock()
        )
        try:
            yield held
        finally:
            leases.drop(self.store, self.space, check_task_id(task), held)

    def renew_lease(self, task: str, lease: Lease, *, ttl_s: float = leases.TTL_S) -> Lease:
        """Hold on to a task. Raises StoreBusy if it was taken over meanwhile."""
        known = check_task_id(task)
        try:
            return leases.renew(self.store, self.space, known, lease, ttl_s=ttl_s, now=self.clock())
        except ConflictError as error:
            raise StoreBusy(f"task {task} was taken over by another worker") from error

    # --- inside -------------------------------------------------------------------------------------------

    def _append(
        self,
        state: TaskState | None,
        events: Sequence[TaskEvent],
        blobs: Mapping[str, bytes],
        *,
        snapshot: bool = False,
    ) -> TaskState:
        after = fold(state, events)
        before = 0 if state is None else state.seq
        ended = after.finished and state is not None and not state.finished
        due = snapshot or ended or after.seq // self._snapshot_every > before // self._snapshot_every
        named = {key: blobs[key] for key in _digests(events) if key in blobs}
        self.store.append_task(
            self.space,
            events,
            named,
            expected_seq=before,
            record=record_of(after, self.space),
            snapshot=after.model_dump_json().encode() if due else None,
        )
        self._remember(after)
        if self.listener is not None:
            self.listener(numbered(events, before))
        return after

    def _head(self, task: TaskId) -> TaskHead:
        head = self.store.task_head(self.space, task)
        if head.seq == 0:
            raise UnknownTask(f"space {self.space!r} has no task {task!r}")
        return head

    def _folded(self, task: TaskId, head: TaskHead, seq: int) -> TaskState:
        """The state at `seq`, from the nearest snapshot on."""
        state = self._snapshot(task, seq)
        if state is None and head.floor:
            raise UnknownTask(f"versions of task {task} before {head.floor} were compacted away")
        after = 0 if state is None else state.seq
        return fold(state, self.store.task_events(self.space, task, after=after, upto=seq))

    def _newest(self, task: str, *, look: bool) -> TaskState:
        """The state to decide on. Alone with a task, what this manager wrote last is the newest: the version tells."""
        with self._lock:
            cached = self._cache.get(cast(TaskId, task))
        return self.get(task) if look or self._crowded or cached is None else cached

    def _remember(self, state: TaskState) -> TaskState:
        with self._lock:
            self._cache[state.id] = state
            self._cache.move_to_end(state.id)
            if len(self._cache) > MAX_CACHED:
                self._cache.popitem(last=False)
        return state

    def _snapshot(self, task: TaskId, upto: int) -> TaskState | None:
        found = self.store.snapshot(self.space, task, upto=upto)
        if found is None:
            return None
        seq, body = found
        try:
            return TaskState.model_validate_json(body)
        except ValidationError as error:
            raise CorruptValue(f"snapshot {seq} of task {task}: {error}") from error

    def _empty_state(self) -> S:
        try:
            return self._state_type()
        except ValidationError as error:
            raise UsageError(
                f"{self._state_type.__name__} has fields without defaults", hint="Pass state=... to create."
            ) from error

    def _state_version(self) -> int:
        field = self._state_type.model_fields.get("schema_version")
        return field.default if field is not None and isinstance(field.default, int) else 1

    def _dump_state(self, state: S) -> dict[str, JsonValue]:
        if not isinstance(state, self._state_type):
            raise UsageError(
                f"the state of a task is a {self._state_type.__name__}, not a {type(state).__name__}"
            )
        return self._plain("state", state.model_dump())

    @staticmethod
    def _plain(what: str, fields: dict[str, Any]) -> dict[str, JsonValue]:
        blobs: dict[str, bytes] = {}
        value = values.to_value(fields, blobs, what=what)
        raw = blobs.get(value.digest)
        return cast("dict[str, JsonValue]", values.from_value(value, _Blobs(blobs)) if raw else value.inline)

    def _changed(self, task: str, change: Callable[[S], S | None], given: S) -> S:
        try:
            returned = change(given)
        except Exception as error:
            raise UsageError(f"the update of task {task} raised {type(error).__name__}: {error}") from error
        after = given if returned is None else returned
        if not isinstance(after, self._state_type):
            raise UsageError(
                f"the update of task {task} returned a {type(after).__name__}, not a {self._state_type.__name__}"
            )
        try:
            # A field may have been set to something its type doesn't allow.
            return self._state_type.model_validate(after.model_dump(warnings=False))
        except ValidationError as error:
            raise UsageError(f"the update of task {task} broke its state: {error}") from error


class _Blobs:
    """Blobs that are not stored yet."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        self._blobs = blobs

    def blob(self, key: str) -> bytes:
        return self._blobs[key]


def _digests(events: Sequence[TaskEvent]) -> Iterator[str]:
    return (key for event in events for key in digests_of(event))


def _slug(name: str) -> str:
    letters = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name.lower())
    return letters.strip("-_")[:40] or "task"
