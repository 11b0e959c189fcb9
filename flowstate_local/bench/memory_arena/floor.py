"""Methods without a model that see only what every method sees: the floors."""

import json

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.bench.memory_arena.plan import SLOTS, Plan, parse_plan
from flowstate_local.bench.memory_arena.travel_tools import FIRST_PLAN, PLAN_DAY
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Toolbox


class DoNothing:
    """Replies with nothing. See `baselines.base.Method`."""

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`."""
        return Answer("replied", "", ())

    async def close(self) -> None:
        """See `Method.close`."""


class CopyBase:
    """Gives every traveller the plan that the first request told. See `baselines.base.Method`."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._base: Plan = ()

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`."""
        if not self._base:
            if self._toolbox.get(FIRST_PLAN):
                text = await must_run(self._toolbox, ToolCall(name=FIRST_PLAN, arguments={}))
            headline = next((line for line in text.splitlines() if line.startswith("===")), "")
            self._base = parse_plan(text, headline.strip("= ").removesuffix("'s Plan"))
        else:
            await submit_plan(self._toolbox, self._base)
        return Answer("replied", "Done.", ())

    async def close(self) -> None:
        """See `Method.close`."""


async def submit_plan(toolbox: Toolbox, plan: Plan) -> None:
    """Plan each day, as a model would. Raises AssertionError if a call fails."""
    for day in plan:
        arguments = {"day": day.days, **{slot: day.slot(slot) for slot in SLOTS}}
        await must_run(toolbox, ToolCall(name=PLAN_DAY, arguments=arguments))


async def must_run(toolbox: Toolbox, call: ToolCall) -> str:
    """Run a call that can't fail; its result. Raises AssertionError if it does."""
    result = await toolbox.run(call)
    if result.failure is not None:
        raise AssertionError(f"{json.dumps(call.arguments)}: {result.failure.message}")
    return result.raw.decode()


def do_nothing(toolbox: Toolbox, instructions: str) -> Method:
    """The seat of one that does nothing."""
    return DoNothing()


def copy_base(toolbox: Toolbox, instructions: str) -> Method:
    """The seat of one that copies the first traveller's plan."""
    return CopyBase(toolbox)
