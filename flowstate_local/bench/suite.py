"""The seam of the benchmarks: a suite has tasks, plays one of them with any method, and says what a run came to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.tools import Toolbox

Seat = Callable[[Toolbox, str], Method]
"""Makes the method under test for one task: its tools, and the instructions of the benchmark ("" for none)."""


@dataclass(frozen=True)
class Played:
    """One task played to its end by one method."""

    scores: Mapping[str, float | None]
    """Metric -> value of this task, larger is better; None if it couldn't be measured (a judge has yet to)."""
    answers: tuple[Answer, ...]
    """One for each request, in order, with the usage of every model call."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """JSON: what was answered, what would have been right, and what a second pass needs."""


@dataclass(frozen=True)
class Figure:
    """One figure of a whole run."""

    name: str
    value: float | None
    """None if nothing was measured."""
    n: int
    """Size of the denominator."""
    note: str = ""
    """What the reader must know: a floor, a subset, errors that count as failures."""


class Suite(Protocol):
    """A benchmark."""

    name: str
    primary: str
    """The metric that stands first in reports and in the running score."""
    settings: Mapping[str, Any]
    """JSON: what distinguishes this instance, such as knobs or the folder of its data."""

    def task_ids(self) -> Sequence[str]:
        """All tasks, in their order.

        Raises:
            UsageError: the data isn't there or isn't right; says how to get it.
        """

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """Play one task. Tasks are played concurrently: nothing may be shared between them.

        Raises:
            EngineError: the engine failed; the task can be played again.
        """

    def figures(self, played: Mapping[str, Sequence[Mapping[str, float | None] | None]]) -> list[Figure]:
        """What a run came to, by this suite's own definitions.

        Args:
            played: task id -> the scores of each trial; None for a trial that failed, which counts as a failure.
        """
