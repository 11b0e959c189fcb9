"""Fakes that ship: an engine that plays a script instead of a model, and an embedder that counts words. Always
labelled: their names are "scripted" and "bag-of-words (fake)".

Use it to test an agent, to provoke faults (cut-off, empty, nonsense outputs), and where speed matters and wit doesn't.
"""

import asyncio
import json
import math
import re
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import jsonschema

from flowstate_local.completion import ChatFrame, Chunk, Completion, Constraint, Profile, Sampling
from flowstate_local.errors import EngineUnavailable, PromptTooLong
from flowstate_local.protocol import StepOutput

CHUNK_CHARS = 40
"""Characters of a piece of a stream."""
MOST_BLOCKS = 200_000
"""Blocks that its prefix cache holds before all are dropped."""
_PIECE = re.compile(r"<\|[a-z_]+\|>|\w{1,6}|\s|[^\w\s]")

Reply = StepOutput | str | Completion
"""What a script may say: a step, verbatim text, or a whole completion (to play a cut-off or an error)."""


class ScriptedTokenizer:
    """A reversible word tokenizer: the same text gives the same ids within one process."""

    frame = ChatFrame("<|system|>\n", "<|user|>\n", "<|assistant|>\n")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; turn markers spelled in it are split, so they can't pass for markers."""
        return [self._id(piece) for piece in _PIECE.findall(text.replace("<|", "< |"))]

    def encode_frame(self, text: str) -> list[int]:
        """Ids of a frame text, turn markers whole."""
        return [self._id(piece) for piece in _PIECE.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`."""
        return "".join(self._pieces[i] for i in ids)

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]


class ScriptedEngine:
    """Plays a model from a list, a generator, or a function of the prompt text.

    Args:
        script: an iterable of replies, or a function from prompt text to reply.
        context_window: tokens of its own (word) tokenizer.
        check: whether a reply that breaks the step's JSON Schema is an AssertionError, so that a script can't do
            what a constrained model couldn't. Texts and completions are never checked: they play faults.
        first_chunk_s: seconds before the first piece of a stream, to play a slow model.
        chunk_s: seconds between pieces.
        remember: whether prompts and constraints are kept to be looked at; without it, any number of steps takes no
            more memory.
    """

    name = "scripted"
    model = "script"
    profile: Profile = "guidance"

    def __init__(
        self,
        script: Iterable[Reply] | Callable[[str], Reply],
        *,
        context_window: int = 32_768,
        block_size: int = 32,
        check: bool = True,
        first_chunk_s: float = 0.0,
        chunk_s: float = 0.0,
        remember: bool = True,
    ) -> None:
        self.tokenizer = ScriptedTokenizer()
        self.context_window = context_window
        self.block_size = block_size
        self.prompts: list[str] = []
        """Every prompt it was given, as text."""
        self.prompt_ids: list[list[int]] = []
        self.constraints: list[Constraint | None] = []
        self._check = check
        self._first_chunk_s = first_chunk_s
        self._chunk_s = chunk_s
        self._remember = remember
        self._closed = False
        self._function = script if callable(script) else None
        self._replies: Iterator[Reply] = iter(()) if callable(script) else iter(script)
        self._cached: set[int] = set()

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """Say the next reply of the script. See `Engine.stream`."""
        if self._closed:
            raise EngineUnavailable("the scripted engine is closed")
        if len(prompt_ids) + sampling.max_tokens > self.context_window:
            raise PromptTooLong(
                f"{len(prompt_ids)} prompt tokens and max_tokens={sampling.max_tokens} exceed the window of "
                f"{self.context_window}"
            )
        started = time.perf_counter()
        prompt = self.tokenizer.decode(prompt_ids)
        if self._remember:
            self.prompts.append(prompt)
            self.prompt_ids.append(list(prompt_ids))
            self.constraints.append(constraint)
        reply = self._reply(prompt, constraint)
        completion = self._complete(reply, prompt_ids, constraint, cache_salt, started)
        # By the clock, not by pauses: a real engine doesn't wait for whoever is late to fetch.
        due = started + self._first_chunk_s
        for start in range(0, len(completion.text), CHUNK_CHARS):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += self._chunk_s
            yield Chunk(completion.text[start : start + CHUNK_CHARS])
        yield Chunk("", completion)

    async def close(self) -> None:
        """End of the play."""
        self._closed = True

    def _reply(self, prompt: str, constraint: Constraint | None) -> Reply:
        """What is said next."""
        if self._function is not None:
            return self._function(prompt)
        try:
            return next(self._replies)
        except StopIteration:
            raise EngineUnavailable("the script has no more replies", hint="Add steps to it.") from None

    def _complete(
        self,
        reply: Reply,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        salt: str | None,
        started: float,
    ) -> Completion:
        if isinstance(reply, Completion):
            return reply
        text = reply if isinstance(reply, str) else dump_step(reply)
        if self._check and isinstance(reply, StepOutput) and constraint is not None:
            check_constraint(text, constraint)
        elapsed_s = time.perf_counter() - started
        return Completion(
            text=text,
            token_ids=tuple(self.tokenizer.encode(text)),
            finish_reason="stop",
            prompt_tokens=len(prompt_ids),
            cached_tokens=self._cache(prompt_ids, salt),
            generated_tokens=len(self.tokenizer.encode(text)),
            ttft_s=elapsed_s,
            total_s=elapsed_s,
        )

    def _cache(self, prompt_ids: Sequence[int], salt: str | None) -> int:
        """Count and remember blocks as a prefix cache would: whole blocks, chained, the last token recomputed."""
        chain, hits, hitting = hash(salt), 0, True
        for end in range(self.block_size, len(prompt_ids), self.block_size):
            chain = hash((chain, tuple(prompt_ids[end - self.block_size : end])))
            hitting = hitting and chain in self._cached
            hits += self.block_size if hitting else 0
            self._cached.add(chain)
        if len(self._cached) > MOST_BLOCKS:
            self._cached.clear()
        return hits


class BagOfWords:
    """A fake embedder: texts that share words are near each other, whatever the words mean. Deterministic.

    Args:
        dimensions: words are hashed into so many places; two words may share one.
    """

    name = "bag-of-words (fake)"

    def __init__(self, dimensions: int = 256) -> None:
        self.dimensions = dimensions
        self.texts: list[str] = []
        """Everything it was given."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of length 1 for each text."""
        self.texts += texts
        return [self._embed(text) for text in texts]

    def _embed(self, text: str) -> list[float]:
        counts = [0.0] * self.dimensions
        for word in re.findall(r"\w+", text.lower()) or [""]:
            counts[zlib.crc32(word.encode()) % self.dimensions] += 1
        length = math.hypot(*counts)
        return [count / length for count in counts]


def dump_step(output: StepOutput) -> str:
    """The compact JSON a model would have written: fields that are empty by default are left out of operations."""
    delta = [_dump_operation(op.model_dump(mode="json", exclude_none=True)) for op in output.state_delta]
    blocks = output.model_dump(mode="json") | {"state_delta": delta}
    return json.dumps(blocks, ensure_ascii=False, separators=(",", ":"))


def _dump_operation(op: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in op.items() if value or key in ("refs", "evidence", "summary")}


def check_constraint(text: str, constraint: Constraint) -> None:
    """AssertionError if `text` is not what the constraint allows."""
    if constraint.kind == "regex":
        assert re.fullmatch(constraint.text, text), f"not a sentence of the regex: {text}"
        return
    errors = jsonschema.Draft202012Validator(json.loads(constraint.text)).iter_errors(json.loads(text))
    error = jsonschema.exceptions.best_match(errors)
    assert error is None, f"a constrained model could not say this: {error.message[:500]}\n{text}"


def step(
    *,
    focus: Sequence[str] = (),
    delta: Sequence[dict[str, Any]] = (),
    calls: Sequence[tuple[str, dict[str, Any]]] = (),
    message: str = "",
) -> StepOutput:
    """A step for a script, from plain values: `step(calls=[("find", {"city": "Rome"})])`."""
    return StepOutput.model_validate(
        {
            "state_focus": list(focus),
            "state_delta": [{"op": "add", **op} for op in delta],
            "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls],
            "assistant_message": message,
        }
    )
