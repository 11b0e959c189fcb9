"""Threads for synchronous tools: daemons, used again, and given up where a tool hangs.

A pool of a fixed size would be full when enough tools hang; a new thread for every call makes the event loop wait until
it has started. So a call takes an idle thread, or starts one if there is none.
"""

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Job = Callable[[], None]
IDLE_S = 10.0
"""Seconds without a job after which a thread ends."""
MOST_IDLE = 64


class Threads:
    """Runs jobs, each at once. Jobs must not raise."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Job]] = []
        """Where threads that wait take their next job from; the one that waited least is last, and first in turn."""

    def run(self, job: Job, name: str) -> None:
        """Start a job in a thread of that name."""
        with self._lock:
            jobs = self._idle.pop() if self._idle else None
        if jobs is not None:
            jobs.put(lambda: _named(job, name))
            return
        jobs = SimpleQueue()
        jobs.put(lambda: _named(job, name))
        threading.Thread(target=self._work, args=(jobs,), name=name, daemon=True).start()

    def _work(self, jobs: "SimpleQueue[Job]") -> None:
        while True:
            try:
                job = jobs.get(timeout=self._idle_s)
            except Empty:
                if self._leave(jobs):
                    return
                continue  # somebody has just taken this thread: its job is on the way
            job()
            del job  # what it holds need not wait for the next one
            with self._lock:
                if len(self._idle) >= MOST_IDLE:
                    return
                self._idle.append(jobs)

    def _leave(self, jobs: "SimpleQueue[Job]") -> bool:
        with self._lock:
            if jobs in self._idle:
                self._idle.remove(jobs)
                return True
            return False


def _named(job: Job, name: str) -> None:
    threading.current_thread().name = name
    job()


THREADS = Threads()


def _begin_anew() -> None:
    """In a forked child none of the threads is there."""
    THREADS.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_begin_anew)
