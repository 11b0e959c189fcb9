"""The plain agent that memories are put into: thought, calls, observations, reply.

    system  rules, tools                                static
    user    memory                                      what a method remembers, before the request
            request, and what happened in it so far     grows at its end

A subclass says what stands in the memory and what becomes of a request when it has ended. Everything else is the same
for all, token for token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from flowstate_local.baselines.base import Answer, Cause, Setting, Usage
from flowstate_local.completion import Completion, Sampling
from flowstate_local.context import instructions_text
from flowstate_local.engines.base import complete
from flowstate_local.errors import GrammarError
from flowstate_local.grammar import react_constraint
from flowstate_local.nodes import Frozen
from flowstate_local.protocol import ToolCall

RULES = """You are an agent. You work on requests step by step, with tools.
At each step you write one JSON object:
"thought": one short sentence on what to do and why.
"tool_calls": tools to run now, or [].
"assistant_message": the final reply, or "". A reply ends the request.
Never calculate or compare in your head: call calculate, such as calculate("30 + 15 < 40"). A reply does nothing by itself: what should happen, do it with a tool first.

Example
REQUEST (2026-03-01)
Read the meter and tell me whether it is above 40.
{"thought":"I need the meter.","tool_calls":[{"name":"read_meter","arguments":{}}],"assistant_message":""}
read_meter: The meter stands at 37.
{"thought":"I compare.","tool_calls":[{"name":"calculate","arguments":{"expression":"37 > 40"}}],"assistant_message":""}
calculate: 37 > 40 is false
{"thought":"Done.","tool_calls":[],"assistant_message":"No, it stands at 37."}

"""
MIN_STEP_TOKENS = 200
"""With less room than this a step isn't worth starting; the request ends as "overflow", and says so."""
MAX_FAULTS = 3


class ReactOutput(Frozen):
    """What the model says in one step."""

    thought: str
    tool_calls: tuple[ToolCall, ...]
    assistant_message: str


@dataclass
class Transcript:
    """One request as text, each piece with its token ids; nothing is ever encoded twice."""

    number: int
    request: str
    pieces: list[tuple[str, list[int]]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(piece for piece, _ in self.pieces)

    @property
    def ids(self) -> list[int]:
        """All of it, encoded piece by piece."""
        return [i for _, ids in self.pieces for i in ids]


class React:
    """A method without a memory; the base of those with one. See `base.Method`.

    Args:
        setting: engine, tools, budget and instructions.
    """

    def __init__(self, setting: Setting) -> None:
        self.engine = setting.engine
        self.toolbox = setting.toolbox.for_model()
        self.budget = setting.budget
        self.n_asked = 0
        tokenizer = self.engine.tokenizer
        encode, frame = tokenizer.encode, tokenizer.frame
        self._head = {
            "rules": tokenizer.encode_frame(frame.system_open) + encode(RULES),
            "tools": encode(f"Tools\n{self.toolbox.canonical}"),
            "instructions": encode(instructions_text(setting.instructions)),
            "frame": tokenizer.encode_frame(frame.user_open),
        }
        self._tail = tokenizer.encode_frame(frame.reply_open)

    # --- what a subclass may change -----------------------------------------------------------------------

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """Token ids of what is remembered, for this request; model calls made for it are added to `usage`."""
        return []

    async def after_step(
        self, transcript: Transcript, memory: list[int], usage: list[Usage], step: int
    ) -> list[int]:
        """The memory for the next step; most memories stay as they are while a request runs."""
        return memory

    def shown(self, transcript: Transcript) -> list[int]:
        """What the prompt shows of the request so far, its text itself apart: here all of it."""
        return [i for _, ids in transcript.pieces[1:] for i in ids]

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Take in a request that has ended."""

    async def close(self) -> None:
        """See `Method.close`."""

    # --- the request --------------------------------------------------------------------------------------

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`."""
        self.n_asked += 1
        usage: list[Usage] = []
        memory = await self.recall(text, usage)
        transcript = Transcript(self.n_asked, text)
        self.add(transcript, f"REQUEST{f' ({date})' if date else ''}\n{text.strip()}\n")
        outcome, message = await self._steps(transcript, memory, usage)
        answer = Answer(outcome, message, tuple(usage))
        await self.remember(transcript, answer, usage)
        return Answer(outcome, message, tuple(usage))

    def add(self, transcript: Transcript, text: str) -> None:
        """Append to a transcript."""
        transcript.pieces.append((text, self.engine.tokenizer.encode(text)))

    async def _steps(self, transcript: Transcript, memory: list[int], usage: list[Usage]) -> tuple[str, str]:
        faults, last_calls = 0, tuple[ToolCall, ...]()
        repeated = False
        for step in range(1, self.budget.max_steps + 1):
            prompt = self._prompt(transcript, memory)
            room = self.engine.context_window - sum(map(len, prompt.values()))
            if room < MIN_STEP_TOKENS:
                return "overflow", f"The prompt leaves {max(room, 0)} tokens of the model's window."
            try:
                may_act = step < self.budget.max_steps and not repeated
                completion = await self._generate(prompt, room, may_act=may_act)
            except GrammarError as error:
                if error.keyword != "max_tokens":
                    raise
                return "overflow", str(error)
            output, fault = _read(completion)
            usage.append(self.usage_of(prompt, completion, step, fault))
            if output is None:
                faults += 1
                if faults == MAX_FAULTS:
                    return "failed", f"The model's output was {fault}, {faults} times."
                continue
            faults = 0
            self.add(transcript, completion.text + "\n")
            if output.assistant_message.strip():
                return "replied", output.assistant_message
            # As in FlowState: what was just called so isn't called again, and then only a reply is left.
            repeated = output.tool_calls == last_calls
            last_calls = output.tool_calls
            await self._act(transcript, () if repeated else output.tool_calls)
            memory = await self.after_step(transcript, memory, usage, step)
        return "step_budget", f"No reply within {self.budget.max_steps} steps."

    async def _act(self, transcript: Transcript, calls: Sequence[ToolCall]) -> None:
        if not calls:
            self.add(transcript, "This was just called so; its result stands above. Reply to the request.\n")
        for call in calls:
            result = await self.toolbox.run(call)
            failed = f"failed: {result.failure.kind}: " if result.failure else ""
            self.add(transcript, f"{call.name}: {failed}{result.raw.decode(errors='replace')}\n")

    def _prompt(self, transcript: Transcript, memory: list[int]) -> dict[str, list[int]]:
        request = transcript.pieces[0][1]
        return {
            **self._head,
            "memory": memory,
            "request": request,
            "transcript": self.shown(transcript) + self._tail,
        }

    async def _generate(self, prompt: dict[str, list[int]], room: int, *, may_act: bool) -> Completion:
        given = self.budget.sampling
        sampling = Sampling(given.temperature, given.top_p, min(given.max_tokens, room), given.seed)
        constraint = react_constraint(self.engine.profile, self.toolbox, sampling.max_tokens, may_act=may_act)
        ids = [i for part in prompt.values() for i in part]
        return await complete(self.engine, ids, constraint, sampling)

    def usage_of(
        self,
        prompt: dict[str, list[int]],
        completion: Completion,
        step: int,
        fault: str = "",
        cause: Cause = "step",
    ) -> Usage:
        """What a call of this request cost."""
        return Usage(
            request=self.n_asked,
            step=step,
            segments={name: len(ids) for name, ids in prompt.items()},
            cached_tokens=completion.cached_tokens,
            generated_tokens=completion.generated_tokens,
            total_s=completion.total_s,
            cause="retry" if fault and cause == "step" else cause,
            fault=fault,
        )


def _read(completion: Completion) -> tuple[ReactOutput | None, str]:
    if completion.finish_reason != "stop":
        return None, "cut_off" if completion.finish_reason == "length" else "empty"
    try:
        return ReactOutput.model_validate_json(completion.text), ""
    except ValidationError:
        return None, "unparsable" if completion.text.strip() else "empty"


def dump_react(thought: str = "", calls: Sequence[tuple[str, object]] = (), message: str = "") -> str:
    """The compact JSON a model would have written, for scripts."""
    tool_calls = [{"name": name, "arguments": arguments} for name, arguments in calls]
    output = {"thought": thought, "tool_calls": tool_calls, "assistant_message": message}
    return json.dumps(output, ensure_ascii=False, separators=(",", ":"))
