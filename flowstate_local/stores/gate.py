"""A gate between transactions and whoever must be alone with the memory map: to resize or to close it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Transactions pass together; who resizes or closes the map waits until none is inside, and holds the rest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_inside = 0
        self._held = False

    def enter(self) -> None:
        """Come in, as soon as nobody is alone. Never twice by one thread: it would wait for itself."""
        with self._changed:
            while self._held:
                self._changed.wait()
            self._n_inside += 1

    def leave(self) -> None:
        """Go out; the last one lets a waiting `alone` begin."""
        with self._changed:
            self._n_inside -= 1
            if not self._n_inside:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody is inside while the block runs."""
        with self._changed:
            while self._held:
                self._changed.wait()
            self._held = True
            while self._n_inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()
