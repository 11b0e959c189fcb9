"""Threads of tools: used again, never waited for, and not left behind."""

import threading
import time

from flowstate_local.tool_threads import Threads


def run(threads: Threads, n: int) -> list[int]:
    """Run `n` jobs one after the other; the threads they ran in."""
    seen: list[int] = []
    for _ in range(n):
        done = threading.Event()

        def job(done: threading.Event = done) -> None:
            seen.append(threading.get_ident())
            done.set()

        threads.run(job, "tool-x")
        assert done.wait(5)
        time.sleep(0.01)  # until it waits again
    return seen


def test_one_thread_is_used_again() -> None:
    assert len(set(run(Threads(), 20))) == 1


def test_one_that_hangs_keeps_nobody_waiting() -> None:
    threads, hang = Threads(), threading.Event()
    for _ in range(100):
        threads.run(lambda: hang.wait(10) and None, "tool-hangs")
    assert len(run(threads, 1)) == 1
    hang.set()


def test_idle_threads_end() -> None:
    threads = Threads(idle_s=0.05)
    run(threads, 3)
    for _ in range(100):
        if "tool-idle" not in {t.name for t in threading.enumerate()} and not threads._idle:
            break
        time.sleep(0.02)
    assert not threads._idle
    assert len(run(threads, 2)) == 2, "and new ones begin"


def test_a_job_is_never_lost_between_the_end_of_a_thread_and_the_next() -> None:
    threads = Threads(idle_s=0.001)
    for pause in (0.0, 0.0005, 0.001, 0.0015) * 100:
        time.sleep(pause)
        done = threading.Event()
        threads.run(done.set, "tool-x")
        assert done.wait(5)
