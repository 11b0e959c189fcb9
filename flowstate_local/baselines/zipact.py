"""ZipAct: a state of goal, world and constraints replaces the history; raw observations are thrown away.

After https://github.com/Thomas-mci-21/ZipAct (its code covers ALFWorld, ScienceWorld and WebShop): an initialiser makes
the state, an updater rewrites it after each observation, and the actor sees the state and the last observation alone.
What it attempted is kept by code. The prompts for other worlds aren't public; these are ours.

There, an episode is one instruction. Here one state serves all requests of an episode: with each new request the
updater moves the goal on and keeps the world and its constraints, for a state that were thrown away between requests
would be no memory at all.
"""

import json
from typing import Any

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.baselines.bm25 import Bm25
from flowstate_local.baselines.react import React, ReactOutput, Transcript
from flowstate_local.completion import Constraint, Sampling
from flowstate_local.engines.base import complete
from flowstate_local.errors import GrammarError
from flowstate_local.grammar import json_constraint

UPDATE_TOKENS = 2_500
"""Of the updater, at most. Upstream has 800 and loses what is cut off; here the longest state that the grammar allows fits,
and a usual one is far shorter."""
MAX_ATTEMPTS = 12
"""Calls that stand under `attempted_actions`, the last ones."""
_TEXT = {"type": "string", "maxLength": 120}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "goal_state": {
            "type": "object",
            "properties": {
                "global_instruction": _TEXT,
                "sub_goals": {"type": "array", "items": _TEXT, "maxItems": 3},
                "current_objective": _TEXT,
            },
            "required": ["global_instruction", "sub_goals", "current_objective"],
            "additionalProperties": False,
        },
        "world_state": {"type": "array", "items": _TEXT, "maxItems": 10},
        "negative_constraints": {"type": "array", "items": _TEXT, "maxItems": 4},
    },
    "required": ["goal_state", "world_state", "negative_constraints"],
    "additionalProperties": False,
}
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
        self._state: dict[str, Any] = {}
        self._attempts: list[str] = []
        self._recalled: list[int] = []

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """The state, moved on to the new request."""
        await self._update(f"NEW REQUEST\n{text.strip()}\n", usage, step=1)
        return self._memory()

    async def after_step(
        self, transcript: Transcript, memory: list[int], usage: list[Usage], step: int
    ) -> list[int]:
        """The state, rewritten with what the step brought."""
        place = self._last_output(transcript)
        calls = ReactOutput.model_validate_json(transcript.pieces[place][0]).tool_calls
        self._attempts += [f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}" for call in calls]
        seen = "".join(text for text, _ in transcript.pieces[place:])
        await self._update(f"OBSERVATION\n{seen}", usage, step=step)
        return self._memory()

    def shown(self, transcript: Transcript) -> list[int]:
        """Only the last step: the rest lives on in the state."""
        return [i for _, ids in transcript.pieces[self._last_output(transcript) :] for i in ids]

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """The reply is what the last step brought."""
        await self._update(f"OBSERVATION\nreplied: {answer.message}\n", usage, step=len(usage) + 1)

    def _last_output(self, transcript: Transcript) -> int:
        """Where the last step of the transcript begins: its output."""
        outputs = [place for place, (text, _) in enumerate(transcript.pieces) if text.startswith("{")]
        return outputs[-1] if outputs else 1

    def _memory(self) -> list[int]:
        state = self._state | {"attempted_actions": self._attempts[-MAX_ATTEMPTS:]}
        text = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
        return self._recalled + self.engine.tokenizer.encode(f"STATE\n{text}\n")

    async def _update(self, news: str, usage: list[Usage], *, step: int) -> None:
        """Ask the updater; an output of which nothing can be used keeps the state as it was, and is counted."""
        tokenizer = self.engine.tokenizer
        prompt = {
            "rules": tokenizer.encode_frame(tokenizer.frame.system_open)
            + tokenizer.encode(UPDATER)
            + tokenizer.encode_frame(tokenizer.frame.user_open),
            "memory": self._memory(),
            "observation": tokenizer.encode(news) + self._tail,
        }
        room = self.engine.context_window - sum(map(len, prompt.values()))
        sampling = Sampling(
            self.budget.sampling.temperature,
            self.budget.sampling.top_p,
            min(UPDATE_TOKENS, room),
            self.budget.sampling.seed,
        )
        try:
            constraint = self._constraint(sampling.max_tokens)
        except GrammarError:
            return  # no room for a state: the actor will say that the window is full
        ids = [i for part in prompt.values() for i in part]
        completion = await complete(self.engine, ids, constraint, sampling)
        fault = "" if completion.finish_reason == "stop" else "cut_off"
        try:
            self._state = json.loads(completion.text) if not fault else self._state
        except json.JSONDecodeError:
            fault = "unparsable"
        usage.append(self.usage_of(prompt, completion, step, fault, cause="memory"))

    def _constraint(self, max_tokens: int) -> Constraint:
        return json_constraint(self.engine.profile, "the state of ZipAct", _SCHEMA, max_tokens)


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
