"""What a benchmark is made of: episodes of requests in order, the tools they have, and what would be right."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowstate_local.nodes import NodeType, Relation


@dataclass(frozen=True)
class Note:
    """What a good agent writes down in a request, for whoever plays one."""

    name: str
    """Unique in its episode."""
    type: NodeType
    summary: str
    refs: tuple[tuple[Relation, str], ...] = ()
    """Relation, name of an earlier note."""
    evidence: bool = True
    """Whether it rests on the results of this request's calls."""


@dataclass(frozen=True)
class Ask:
    """One request, and how an agent that makes no mistake answers it."""

    text: str
    date: str
    opens: tuple[str, ...] = ()
    """Names of the notes whose raw results hold what is needed; all else needed is in the request."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    notes: tuple[Note, ...] = ()
    reply: str = "Done."


@dataclass(frozen=True)
class Verdict:
    """What an episode came to."""

    right: bool
    answer: str
    truth: str


@dataclass(frozen=True)
class Episode:
    """One task: requests of one memory, in order; the last is the question."""

    id: str
    family: str
    domain: str
    held_out: bool
    """Whether the family is kept apart, for those who tune on the others."""
    asks: tuple[Ask, ...]
    truth: str
    options: tuple[str, ...]
    """The answers that `decide` accepts."""
    documents: Mapping[str, str] = field(repr=False)
    """Topic -> raw text."""

    def world(self) -> "World":
        """A fresh world to play it in."""
        return World(self)


class World:
    """What the tools of an episode act on; made anew for each run."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self.answer = ""
        """The first thing that was decided in the question, "" before."""
        self.asked = False
        """Whether the question was put: decisions before that don't count."""

    def verdict(self) -> Verdict:
        """The answer against the truth."""
        truth = self._episode.truth
        return Verdict(self.answer == truth, self.answer, truth)
