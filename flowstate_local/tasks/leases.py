"""Who works on a task: an exclusive lease, for those who want one worker at a time.

A lease is advice. What keeps two workers apart in the end is the version of the task: of two that record the start of
a step, one loses. The lease keeps the second from trying.
"""

import os
import uuid
from pathlib import Path

from flowstate_local.errors import ConflictError, StoreBusy
from flowstate_local.stores.base import Lease, Store
from flowstate_local.task_events import TaskId

TTL_S = 30.0
"""After so long without a renewal a worker counts as dead; one whose process is gone counts as dead at once."""


def take(store: Store, space: str, task: TaskId, *, name: str, ttl_s: float, now: float) -> Lease:
    """Take the lease of a task.

    Raises:
        StoreBusy: a worker that lives holds it.
    """
    current = store.lease(space, task)
    if current is not None and alive(current, now):
        raise StoreBusy(
            f"task {task} is being worked on by {current.name or 'another worker'} (process {current.pid})",
            hint="Wait for it, or stop that process; a worker that died is noticed by itself.",
        )
    mine = Lease(
        token=uuid.uuid4().hex,
        name=name,
        pid=os.getpid(),
        process_started=_process_started(os.getpid()),
        expires_at=now + ttl_s,
    )
    try:
        store.set_lease(space, task, mine, replacing=current.token if current else "")
    except ConflictError as error:
        raise StoreBusy(f"task {task} was taken by another worker just now") from error
    return mine


def renew(store: Store, space: str, task: TaskId, lease: Lease, *, ttl_s: float, now: float) -> Lease:
    """Hold on to a lease. Raises ConflictError if it was lost."""
    longer = lease.model_copy(update={"expires_at": now + ttl_s})
    store.set_lease(space, task, longer, replacing=lease.token)
    return longer


def drop(store: Store, space: str, task: TaskId, lease: Lease) -> None:
    """Give a lease back; one that was lost meanwhile is somebody else's now."""
    try:
        store.set_lease(space, task, None, replacing=lease.token)
    except ConflictError:
        return


def alive(lease: Lease, now: float) -> bool:
    """Does the worker live, as far as can be told?"""
    if lease.expires_at <= now:
        return False
    if lease.pid == 0:
        return True
    # Stores need a local disk, so all workers are on this machine.
    try:
        os.kill(lease.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not lease.process_started or _process_started(lease.pid) == lease.process_started


def _process_started(pid: int) -> str:
    """When a process began, in ticks since boot; "" where the system has no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may hold blanks and parentheses. State is the first field after it.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]
