"""How long work on a model reports where it stands."""

from typing import Literal, Protocol

Stage = Literal["wait", "download", "verify", "convert"]
"""`wait`: another process works on the same model; the other three follow each other in this order."""


class Progress(Protocol):
    """Told about every megabyte or so; called from the thread that called `fetch` or `resolve`."""

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        """Take note that `done` of `total` bytes of this stage are through; 0 of 0 while waiting."""


def silent(stage: Stage, done: int, total: int) -> None:
    """Report nothing."""
