"""ZipAct: a state of goal, world and constraints replaces the history; raw observations are thrown away.

After https://github.com/Thomas-mci-21/ZipAct (its code covers ALFWorld, ScienceWorld and WebShop): an initialiser makes
the state, an updater rewrites it after each observation, and the actor sees the state and the last observation alone.
What it attempted is kept by code. The prompts for other worlds aren't public; these are ours.

There, an episode is one instruction. Here one state serves all requests of an episode: with each new request the
updater moves the goal on and keeps the world and its constraints, for a state that were thrown away between requests
would be no memory at all.
"""

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.baselines.bm25 import Bm25
from flowstate_local.baselines.memory_call import MemoryCall, call_for_memory
from flowstate_local.baselines.react import React, ReactOutput, Transcript

UPDATE_TOKENS = 3_600
"""Of the updater, at most. Upstream has 800 and loses what is cut off; here the longest state that the grammar allows fits,
and a usual one is far shorter."""
MAX_ATTEMPTS = 12
"""Calls that stand under `attempted_actions`, the last ones."""
Line = Annotated[str, Field(max_length=60)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GoalState(_Part):
    """G: what is asked for."""

    global_instruction: Line
    sub_goals: Annotated[list[Line], Field(max_length=2)]
    current_objective: Line


class State(_Part):
    """S = (G, W, C); what was attempted is kept beside it, by code."""

    goal_state: GoalState
    world_state: Annotated[list[Line], Field(max_length=8)]
    negative_constraints: Annotated[list[Line], Field(max_length=2)]


UPDATER = """You keep the state of an agent. Write the whole new state as JSON.
goal_state: what is asked for, what is left to do, what to do now.
world_state: facts worth keeping, each in one line with its names and numbers: what was found, decided, planned, wished for. Keep the facts of earlier requests.
negative_constraints: what failed or must not be done.
Only what stands in the state lives on; the observation will be gone.
"""


class ZipAct(React):
    """See `React`."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._state: State | None = None
        self._attempts: list[str] = []
        self._recalled: list[int] = []

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """The state, moved on to the new request."""
        await self._update(f"NEW REQUEST\n{text.strip()}\n", usage)
        return self._memory()

    async def after_step(
        self, transcript: Transcript, memory: list[int], usage: list[Usage], step: int
    ) -> list[int]:
        """The state, rewritten with what the step brought."""
        place = self._last_output(transcript)
        calls = ReactOutput.model_validate_json(transcript.pieces[place][0]).tool_calls
        self._attempts += [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in calls]
        seen = "".join(text for text, _ in transcript.pieces[place:])
        await self._update(f"OBSERVATION\n{seen}", usage)
        return self._memory()

    def shown(self, transcript: Transcript) -> list[int]:
        """Only the last step: the rest lives on in the state."""
        return [i for _, ids in transcript.pieces[self._last_output(transcript) :] for i in ids]

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """The reply is what the last step brought."""
        await self._update(f"OBSERVATION\nreplied: {answer.message}\n", usage)

    def _last_output(self, transcript: Transcript) -> int:
        """Where the last step of the transcript begins: its output."""
        outputs = [place for place, (text, _) in enumerate(transcript.pieces) if text.startswith("{")]
        return outputs[-1] if outputs else 1

    def _memory(self) -> list[int]:
        return self._recalled + self.engine.tokenizer.encode(self._state_text())

    def _state_text(self) -> str:
        state = self._state.model_dump() if self._state else {}
        state["attempted_actions"] = self._attempts[-MAX_ATTEMPTS:]
        return f"STATE\n{json.dumps(state, ensure_ascii=False, separators=(',', ':'))}\n"

    async def _update(self, news: str, usage: list[Usage]) -> None:
        """Ask the updater; an output of which nothing can be used keeps the state as it was, and is counted."""
        call = MemoryCall(
            name="the state of ZipAct",
            rules=UPDATER,
            text=self._state_text() + news,
            output=State,
            max_tokens=UPDATE_TOKENS,
            temperature=self.budget.sampling.temperature,
        )
        self._state = await call_for_memory(self, call, usage) or self._state


class ZipActBm25(ZipAct):
    """ZipAct, and before its state the passages of earlier requests that BM25 finds."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._passages = Bm25(setting)

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """Passages and state."""
        self._recalled = await self._passages.recall(text, usage)
        return await super().recall(text, usage)

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Both take it in."""
        await super().remember(transcript, answer, usage)
        await self._passages.remember(transcript, answer, usage)
