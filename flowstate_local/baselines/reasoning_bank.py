"""ReasoningBank: after each request a judge says whether it succeeded, and lessons are drawn from it.

Two variants: that of its authors (google-research/reasoning-bank), where the lessons of the one request most like the
present one are recalled, and MemoryArena's, where whole records of the five nearest trajectories are. Both have their
figures from there; the prompts are our own, and the outputs are grammar-constrained JSON instead of Markdown. An
instance is one episode: nothing is ever recalled from another.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.baselines.embedder import Embedder, Vector, cosine
from flowstate_local.baselines.memory_call import MemoryCall, call_for_memory, fill
from flowstate_local.baselines.react import React, Transcript

Status = Literal["success", "failure"]
"""How a request ended, in the eyes of the judge."""

MAX_ITEMS = 3
EMBEDDED_CHARS = 4_096
JUDGE_TOKENS = 256
EXTRACTION_TOKENS = 4_096

JUDGE_RULES = """You judge how an agent worked on a request. You see all it did: its steps, what its tools answered, and how it ended.
It succeeded if everything the request asks for was really done or answered, as far as the record shows. It failed if something is missing, wrong, invented, or if it ended without a reply.
Write one JSON object:
"reason": what decides it, in one short sentence.
"outcome": "success" or "failure".
"""
_EXTRACTION_RULES = """You keep a bank of lessons for an agent. You see all that it did on one request: its steps, what its tools answered, and how it ended. {verdict}
Write one to three lessons that would help with other requests of this kind. {task} Each lesson stands by itself, differs from the others, and holds beyond this case: name no particular persons, products, places or figures.
Write one JSON object with "items", a list of lessons. Each has
"title": a few words that name it.
"description": when it applies, in one sentence.
"content": what to do and why, in one to three sentences.
"""
SUCCESS_RULES = _EXTRACTION_RULES.format(
    verdict="It succeeded.", task="Say which ways of working made it succeed."
)
FAILURE_RULES = _EXTRACTION_RULES.format(
    verdict="It failed.", task="Say what went wrong, and what would have prevented it."
)
QUERY_PREFIX = "Given a request, find records of earlier work that help with it. Request: "


def _at_most(limit: int) -> Any:
    """A text that is cut where the grammar couldn't bound it (the outlines profile)."""
    return BeforeValidator(lambda value: value[:limit] if isinstance(value, str) else value)


class Item(BaseModel):
    """One lesson."""

    title: Annotated[str, Field(min_length=1, max_length=80), _at_most(80)]
    description: Annotated[str, Field(max_length=240), _at_most(240)]
    content: Annotated[str, Field(min_length=1)]

    def text(self) -> str:
        """As it stands in a prompt."""
        return f"- {self.title}: {self.description}\n  {self.content}\n"


class Lessons(BaseModel):
    """What the extraction answers. At least one: offered an empty list, a small model always takes that way out."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS)]


class Verdict(BaseModel):
    """What the judge answers."""

    reason: Annotated[str, Field(max_length=200), _at_most(200)]
    outcome: Status


@dataclass(frozen=True)
class Variant:
    """What the two versions do differently."""

    name: str
    embeds: Literal["query", "trajectory"]
    """What a record is found by: its request, or the beginning of all that happened."""
    query_prefix: str
    """Before a request that is looked up."""
    top_k: int
    """Records that are recalled at most."""
    shows: Literal["items", "records"]
    """What stands in the prompt."""
    judge_temperature: float
    extraction_temperature: float


ORIGINAL = Variant("original", "query", "", 1, "items", 0.0, 1.0)
MEMORY_ARENA = Variant("memory_arena", "trajectory", QUERY_PREFIX, 5, "records", 0.0, 0.7)


@dataclass(frozen=True)
class Record:
    """What is kept of a request."""

    request: int
    query: str
    status: Status
    items: tuple[Item, ...]
    vector: Vector

    def text(self) -> str:
        """The whole record, as MemoryArena puts it into a prompt, without its time: no clock in a prompt."""
        items = [item.model_dump() for item in self.items]
        record = {"task_id": self.request, "status": self.status, "memory_items": items}
        return json.dumps(record, ensure_ascii=False) + "\n"


class ReasoningBank(React):
    """See the module.

    Args:
        setting: engine, tools, budget and instructions.
        embedder: finds records by meaning.
        variant: `ORIGINAL` or `MEMORY_ARENA`.
    """

    def __init__(self, setting: Setting, embedder: Embedder, variant: Variant = ORIGINAL) -> None:
        super().__init__(setting)
        self.variant = variant
        self.records: list[Record] = []
        """Oldest first."""
        self._embedder = embedder

    @property
    def settings(self) -> dict[str, Any]:
        """What is in effect, to print beside results."""
        return {
            **asdict(self.variant),
            "embedder": self._embedder.name,
            "dimensions": self._embedder.dimensions,
            "max_items": MAX_ITEMS,
            "judge_tokens": JUDGE_TOKENS,
            "extraction_tokens": EXTRACTION_TOKENS,
            "memory_tokens": self.budget.memory_tokens,
            "prompts": "flowstate_local's own",
        }

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """The nearest records, best first, as far as the budget holds them; of equally near ones the later."""
        if not self.records:
            return []
        vector = await self._embed(self.variant.query_prefix + text)
        newest_first = reversed(self.records)
        ranked = sorted(newest_first, key=lambda record: cosine(vector, record.vector), reverse=True)
        return self._shown(ranked[: self.variant.top_k])

    def _shown(self, records: Sequence[Record]) -> list[int]:
        if self.variant.shows == "records":
            return fill(self, "<memory>\n", [record.text() for record in records], "</memory>\n")
        pieces = [item.text() for record in records for item in record.items]
        return fill(self, "Lessons from earlier requests\n", pieces)

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Judge the request, and keep what can be learned from it. If the lessons can't be read there's no record."""
        whole = f"{transcript.text}\nEND: {answer.outcome}\n"
        status = await self._judge(whole, usage)
        items = await self._extract(whole, status, usage)
        if not items:
            return
        key = transcript.request if self.variant.embeds == "query" else whole[:EMBEDDED_CHARS]
        vector = await self._embed(key)
        self.records.append(Record(transcript.number, transcript.request, status, items, vector))

    async def _judge(self, whole: str, usage: list[Usage]) -> Status:
        """A verdict that can't be read counts as failure, as in MemoryArena, which looks for the word success."""
        temperature = self.variant.judge_temperature
        call = MemoryCall("verdict", JUDGE_RULES, whole, Verdict, JUDGE_TOKENS, temperature)
        verdict = await call_for_memory(self, call, usage)
        return verdict.outcome if verdict else "failure"

    async def _extract(self, whole: str, status: Status, usage: list[Usage]) -> tuple[Item, ...]:
        rules = SUCCESS_RULES if status == "success" else FAILURE_RULES
        temperature = self.variant.extraction_temperature
        call = MemoryCall("memory items", rules, whole, Lessons, EXTRACTION_TOKENS, temperature)
        lessons = await call_for_memory(self, call, usage)
        return tuple(lessons.items) if lessons else ()

    async def _embed(self, text: str) -> Vector:
        (vector,) = await asyncio.to_thread(self._embedder.embed, [text])
        return vector
