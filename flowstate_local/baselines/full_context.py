"""Full context: everything that ever happened stands in the prompt. When that no longer fits, it says so."""

from flowstate_local.baselines.base import Answer, Budget, Usage
from flowstate_local.baselines.react import React, Transcript
from flowstate_local.engines.base import Engine
from flowstate_local.tools import Toolbox


class FullContext(React):
    """Earlier requests, whole, before the present one: append-only, so the prefix cache serves them."""

    def __init__(self, engine: Engine, toolbox: Toolbox, budget: Budget) -> None:
        super().__init__(engine, toolbox, budget)
        self._history: list[int] = []

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """All of it."""
        return self._history

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Append the request to the history."""
        self._history = self._history + transcript.ids
