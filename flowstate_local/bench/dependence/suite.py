"""Dependence as a suite: plays an episode with any method and judges it by the state of its world."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.dependence.families import FAMILIES, HELD_OUT
from flowstate_local.bench.dependence.generate import Knobs, episodes, tools_of
from flowstate_local.bench.episode import Episode
from flowstate_local.bench.suite import Figure, Played, Seat


class DependenceSettings(BaseModel):
    """What may be set of Dependence."""

    model_config = ConfigDict(extra="forbid")

    requests: int = Field(6, ge=1, le=200)
    """Requests of an episode."""
    raw_chars: int = Field(1_200, ge=100, le=100_000)
    """Characters of a raw result, about."""
    hops: int = Field(1, ge=1, le=6)
    """Papers that refer to one another before the one that holds the fact."""
    apart: bool = True
    """Whether the unrelated business stands between the plot and its question."""
    per_cell: int = Field(1, ge=1, le=1_000)
    """Episodes for each of 8 families in each of 3 domains."""
    seed: int = 0
    families: str = Field("all", pattern="^(all|train|held_out)$")
    """The families to tune on, those that are kept apart, or all."""


class Dependence:
    """See `suite.Suite`."""

    name = "dependence"
    primary = "right"

    def __init__(self, settings: DependenceSettings) -> None:
        self.settings: Mapping[str, Any] = settings.model_dump()
        knobs = Knobs(settings.requests, settings.raw_chars, settings.hops, settings.apart)
        held_out = {"all": None, "train": False, "held_out": True}[settings.families]
        made = episodes(knobs, per_cell=settings.per_cell, seed=settings.seed, held_out=held_out)
        self._episodes = {one.id: one for one in made}

    def task_ids(self) -> Sequence[str]:
        """See `Suite.task_ids`."""
        return list(self._episodes)

    def episode(self, task_id: str) -> Episode:
        """One of them, for an oracle."""
        return self._episodes[task_id]

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`."""
        episode = self._episodes[task_id]
        world = episode.world()
        method = seat(tools_of(world, episode), "")
        answers: list[Answer] = []
        for place, ask in enumerate(episode.asks, start=1):
            world.asked = place == len(episode.asks)
            answers.append(await method.ask(ask.text, date=ask.date))
        verdict = world.verdict()
        return Played(
            scores={"right": float(verdict.right), "decided": float(bool(verdict.answer))},
            answers=tuple(answers),
            detail={
                "answer": verdict.answer,
                "truth": verdict.truth,
                "options": list(episode.options),
                "family": episode.family,
                "domain": episode.domain,
                "held_out": episode.held_out,
            },
        )

    def figures(self, played: Mapping[str, Sequence[Mapping[str, float | None] | None]]) -> list[Figure]:
        """See `Suite.figures`."""
        chance = _mean([1 / len(self._episodes[task].options) for task in played if task in self._episodes])
        note = f"guessing among the options: {chance:.0%}" if chance is not None else ""
        figures = [_share("right", "right", played, note), _share("decided", "decided", played)]
        for family in FAMILIES:
            some = {task: trials for task, trials in played.items() if task.startswith(f"{family}-")}
            apart = "kept apart from tuning" if family in HELD_OUT else ""
            if some:
                figures.append(_share(f"right: {family}", "right", some, apart))
        return figures


def _share(
    name: str, metric: str, played: Mapping[str, Sequence[Mapping[str, float | None] | None]], note: str = ""
) -> Figure:
    """Share of all trials, those that failed counted as wrong."""
    values = [float((trial or {}).get(metric) or 0.0) for trials in played.values() for trial in trials]
    return Figure(name, _mean(values), len(values), note)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
