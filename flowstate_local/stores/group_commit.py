"""Group commit: writers that meet share one transaction, because the sync to disk costs more than all else."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from flowstate_local.errors import StoreError

R = TypeVar("R")
M = TypeVar("M", bound="Member[Any]")


@dataclass
class Member(Generic[R]):
    """One writer's part of a group. The write fills in `result` or `error`."""

    result: R | None = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    done: bool = field(default=False, init=False)


class GroupCommit(Generic[M]):
    """The first writer leads: it writes for all that came while the last group was being written.

    Args:
        write: commits a group durably and fills in each member. When it raises, nothing was written.
    """

    def __init__(self, write: Callable[[Sequence[M]], None]) -> None:
        self._write = write
        self._turn = threading.Condition()
        self._waiting: list[M] = []
        self._writing = False

    def commit(self, mine: M) -> Any:
        """Return the member's result once it is durable, or raise its error."""
        group = self._join(mine)
        if group:
            self._lead(group)
        if mine.error is not None:
            raise mine.error
        if mine.result is None:
            raise StoreError("the commit was interrupted", hint="Read the head to see whether it happened.")
        return mine.result

    def _join(self, mine: M) -> list[M]:
        """Wait until a leader has written `mine` or it is `mine` that leads: then the group to write."""
        with self._turn:
            self._waiting.append(mine)
            while self._writing and not mine.done:
                self._turn.wait()
            if mine.done:
                return []
            group, self._waiting, self._writing = self._waiting, [], True
            return group

    def _lead(self, group: list[M]) -> None:
        try:
            self._write_each(group)
        finally:
            with self._turn:
                self._writing = False
                for member in group:
                    member.done = True
                self._turn.notify_all()

    def _write_each(self, group: Sequence[M]) -> None:
        try:
            self._write(group)
        except Exception as error:
            if len(group) == 1:
                group[0].result, group[0].error = None, error
                return
            # Perhaps only one of them is too large or broken: let each stand alone.
            for member in group:
                self._write_each([member])
