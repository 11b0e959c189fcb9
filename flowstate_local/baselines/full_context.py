"""Full context: everything that ever happened stands in the prompt. When that no longer fits, it says so."""

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.baselines.react import React, Transcript


class FullContext(React):
    """Earlier requests, whole, before the present one: append-only, so the prefix cache serves them."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._history: list[int] = []

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """All of it."""
        return self._history

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Append the request to the history."""
        self._history = self._history + transcript.ids
