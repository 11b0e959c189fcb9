"""The rows of the official files, as pydantic models that name what is wrong with a row."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from flowstate_local.bench.memory_arena.plan import Day, Plan

_NAME = re.compile(r"\s*I am (\w+)\.")

Questions = Annotated[tuple[str, ...], Field(min_length=1)]


class Row(BaseModel):
    """One task: its subtasks in order. What they depend on is only in their texts."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)

    id: int
    """Unique in its file."""
    questions: Questions


class Person(BaseModel):
    """The first traveller, whose plan is settled."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    name: str
    query: str
    daily_plans: Annotated[tuple[Day, ...], Field(min_length=1)]


class TravelRow(Row):
    """A group that travels together; each question is one more traveller's."""

    base_person: Person
    answers: tuple[Annotated[tuple[Day, ...], Field(min_length=1)], ...]

    @model_validator(mode="after")
    def _pairs(self) -> "TravelRow":
        _same_length("answers", len(self.answers), len(self.questions))
        for place, question in enumerate(self.questions):
            if not _NAME.match(question):
                raise ValueError(f'questions.{place} doesn\'t begin with "I am NAME."')
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Who asks, in order."""
        return tuple(match[1] for match in map(_NAME.match, self.questions) if match)

    @property
    def base(self) -> Plan:
        """The first traveller's plan."""
        return self.base_person.daily_plans


class FormalRow(Row):
    """A paper, cut into problems that build on each other."""

    answers: tuple[str, ...]
    paper_name: str
    backgrounds: tuple[str, ...]
    """One for each question, mostly ""; what the first defines is used by later ones."""

    @model_validator(mode="after")
    def _pairs(self) -> "FormalRow":
        _same_length("answers", len(self.answers), len(self.questions))
        _same_length("backgrounds", len(self.backgrounds), len(self.questions))
        return self


class Wanted(BaseModel):
    """The product that is right, and what any product in its place should be."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    target_asin: Annotated[str, Field(min_length=1)]
    attributes: tuple[str, ...]


class ShoppingRow(Row):
    """Products that go together, bought one after the other."""

    category: str
    answers: tuple[Wanted, ...]

    @model_validator(mode="after")
    def _pairs(self) -> "ShoppingRow":
        _same_length("answers", len(self.answers), len(self.questions))
        return self


def _same_length(name: str, n: int, wanted: int) -> None:
    if n != wanted:
        raise ValueError(f"{name} has {n} entries for {wanted} questions")
