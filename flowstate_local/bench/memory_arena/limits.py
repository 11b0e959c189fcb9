"""Floor and ceiling of travel: methods that see the truth, or that do nothing. Never part of a comparison."""

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.bench.memory_arena.rows import Day, TravelRow
from flowstate_local.bench.suite import Seat
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Toolbox


class _Hands:
    """Hands in plans that stand from the start, one for each request after the first."""

    def __init__(self, toolbox: Toolbox, plans: list[tuple[Day, ...]]) -> None:
        self._toolbox, self._plans = toolbox, plans
        self._asked = 0

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        self._asked += 1
        if 1 < self._asked <= len(self._plans) + 1:
            plan = [day.model_dump() for day in self._plans[self._asked - 2]]
            await self._toolbox.run(ToolCall(name="submit_plan", arguments={"daily_plans": plan}))
        return Answer("replied", "Done.", ())

    async def close(self) -> None:
        """Nothing to give back."""


def gold(row: TravelRow) -> Seat:
    """Hands in the right plans."""
    return lambda toolbox, instructions: _Hands(toolbox, list(row.answers))


def copy_base(row: TravelRow) -> Seat:
    """Hands in the base person's plan for everybody."""
    plans = [row.base_person.daily_plans] * len(row.questions)
    return lambda toolbox, instructions: _Hands(toolbox, plans)


def nothing(toolbox: Toolbox, instructions: str) -> Method:
    """Hands in nothing."""
    return _Hands(toolbox, [])
