"""Methods that SEE THE TRUTH: they prove that a suite can be solved and that its scorer lets what is right pass.

They are no baselines. What they score is 1 by construction; anything less is a fault of ours or of the data.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.bench.memory_arena.floor import must_run, submit_plan
from flowstate_local.bench.memory_arena.rows import FormalRow, ShoppingRow, TravelRow
from flowstate_local.bench.suite import Seat
from flowstate_local.errors import UsageError
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Toolbox


@dataclass(frozen=True)
class _Known:
    """One task: what will be asked, and how it is answered; the reply."""

    questions: tuple[str, ...]
    answer: Callable[[int, Toolbox], Awaitable[str]]


class Knowing:
    """Finds the task by the texts that it is asked, and gives its right answers. See `baselines.base.Method`."""

    def __init__(self, tasks: Sequence[_Known], toolbox: Toolbox) -> None:
        self._tasks = list(tasks)
        self._toolbox = toolbox
        self._asked = 0

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`. Raises UsageError: no known task begins with these requests."""
        place = self._asked
        self._asked += 1
        self._tasks = [
            task for task in self._tasks if len(task.questions) > place and task.questions[place] in text
        ]
        if not self._tasks:
            raise UsageError(f"no task whose truth is known has request {self._asked}: {text[:80]!r}")
        return Answer("replied", await self._tasks[0].answer(place, self._toolbox), ())

    async def close(self) -> None:
        """See `Method.close`."""


def gold_travel(rows: Iterable[TravelRow]) -> Seat:
    """The seat of one that submits the right plan for everybody."""

    def known(row: TravelRow) -> _Known:
        async def answer(place: int, toolbox: Toolbox) -> str:
            if place:
                await submit_plan(toolbox, row.answers[place - 1])
            return "Done."

        return _Known((row.base_person.query.strip(), *row.questions), answer)

    return _seat([known(row) for row in rows])


def gold_formal(rows: Iterable[FormalRow]) -> Seat:
    """The seat of one that replies with the reference answers."""

    def known(row: FormalRow) -> _Known:
        async def answer(place: int, toolbox: Toolbox) -> str:
            return row.answers[place]

        return _Known(tuple(question.strip() for question in row.questions), answer)

    return _seat([known(row) for row in rows])


def gold_shopping(rows: Iterable[ShoppingRow]) -> Seat:
    """The seat of one that buys what is right."""

    def known(row: ShoppingRow) -> _Known:
        async def answer(place: int, toolbox: Toolbox) -> str:
            asin = row.answers[place].target_asin
            await must_run(toolbox, ToolCall(name="buy", arguments={"asin": asin}))
            return "Done."

        return _Known(tuple(question.strip() for question in row.questions), answer)

    return _seat([known(row) for row in rows])


def _seat(tasks: Sequence[_Known]) -> Seat:
    def sit(toolbox: Toolbox, instructions: str) -> Method:
        return Knowing(tasks, toolbox)

    return sit
