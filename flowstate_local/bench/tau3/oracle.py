"""The ceiling and the floor: an agent that makes the gold actions, and one that does nothing.

Both go through the same bridge, orchestrator and evaluator as any method, with a user that needs no model. The first
reads the task, gold actions included: it shows what can be reached, and is no result.
"""

from typing import Any

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.suite import Seat
from flowstate_local.bench.tau3.simulation import UserMaker
from flowstate_local.bench.tau3.upstream import Upstream
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Toolbox

STOP = "###STOP###"


class Gold:
    """Makes the gold actions of a task in their order and says what has to be said. See `base.Method`."""

    def __init__(self, toolbox: Toolbox, task: Any) -> None:
        self._toolbox = toolbox
        self._criteria = task.evaluation_criteria

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`."""
        refused = 0
        for action in self._criteria.actions or ():
            result = await self._toolbox.run(ToolCall(name=action.name, arguments=action.arguments))
            refused += result.failure is not None
        said = " ".join(["Done.", *(self._criteria.communicate_info or ())])
        return Answer("replied", said, (), refused)

    async def close(self) -> None:
        """See `Method.close`."""


class Silent:
    """Replies and does nothing. See `base.Method`."""

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`."""
        return Answer("replied", "Done.", ())

    async def close(self) -> None:
        """See `Method.close`."""


class OneRequest:
    """A user who says one thing and then goodbye; see tau2's HalfDuplexUser."""

    def __init__(self, tau2: Upstream) -> None:
        self._tau2 = tau2

    def set_seed(self, seed: int) -> None:
        """Nothing is drawn."""

    def get_init_state(self, message_history: Any = None) -> int:
        """How often it has spoken."""
        return 0

    def generate_next_message(self, message: Any, state: int) -> tuple[Any, int]:
        """The next thing it says."""
        text = STOP if state else "Please do what I need."
        return self._tau2.UserMessage(role="user", content=text, cost=0.0), state + 1

    def stop(self, message: Any = None, state: Any = None) -> None:
        """It has nothing to give back."""


def gold_seat(task: Any) -> Seat:
    """The ceiling, for one task of tau2."""
    return lambda toolbox, instructions: Gold(toolbox, task)


def silent_seat(toolbox: Toolbox, instructions: str) -> Silent:
    """The floor; a `Seat`."""
    return Silent()


def one_request(tau2: Upstream) -> UserMaker:
    """A maker of users that need no model."""
    return lambda task: OneRequest(tau2)
