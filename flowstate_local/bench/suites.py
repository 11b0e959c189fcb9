"""The suites by name: what may be set of each, and how it is made."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowstate_local.bench.dependence.suite import Dependence, DependenceSettings
from flowstate_local.bench.memory_arena.catalogue import Catalogue
from flowstate_local.bench.memory_arena.formal import Formal
from flowstate_local.bench.memory_arena.judge import ServerJudge
from flowstate_local.bench.memory_arena.load import Subject
from flowstate_local.bench.memory_arena.shopping import Shopping
from flowstate_local.bench.memory_arena.travel import Travel
from flowstate_local.bench.suite import Suite
from flowstate_local.bench.tau3.dataset import Domain
from flowstate_local.bench.tau3.server import Server
from flowstate_local.bench.tau3.simulation import Limits
from flowstate_local.bench.tau3.suite import Tau3
from flowstate_local.errors import UsageError


@dataclass(frozen=True)
class SuiteInfo:
    """One benchmark."""

    about: str
    settings: type[BaseModel]
    make: Callable[[Any], Suite]
    """From an instance of `settings`."""
    needs: str = "nothing"
    """What the user must have."""


API_KEY = "FLOWSTATE_BENCH_API_KEY"
"""Environment variable with the key for the servers of users and judges; never written down with a run."""


ARENA = "MemoryArena's files (hub: ZexueHe/memoryarena)"
TAU3_NEEDS = "tau2-bench v1.0.1 (Python 3.12), its data, a model that plays the user"


class Tau3Settings(BaseModel):
    """What may be set of τ³-bench."""

    model_config = ConfigDict(extra="forbid")

    user_url: str = "http://localhost:8000/v1"
    """OpenAI-compatible server of the model that plays the user."""
    user_model: str = ""
    user_temperature: float = Field(0.0, ge=0)
    judge_url: str = ""
    """Of the judge (retail: 40 of 114 tasks); without one `flowstate bench judge` can ask later."""
    judge_model: str = ""
    max_steps: int = Field(200, ge=1)
    """Messages of a conversation."""
    max_errors: int = Field(10, ge=1)


class _ArenaSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    folder: str = "memoryarena"
    """Of the official files."""


class TravelSettings(_ArenaSettings):
    """What may be set of MemoryArena's group travel."""

    tables: str = "travel_planner_database"
    """Folder of TravelPlanner's tables."""
    strict_missing: bool = True
    """Whether a traveller without a plan counts as failed; officially nobody counts them."""
    plan_by_tool: bool = False
    """Whether the first plan comes as a raw result instead of in the first request."""


class _JudgedSettings(_ArenaSettings):
    judge_url: str = ""
    """Of an OpenAI-compatible server; without one `flowstate bench judge` can ask later."""
    judge_model: str = ""
    judge_parse: Literal["substring", "exact"] = "substring"
    """How the judge's words are read; substring is official."""

    def judge(self) -> ServerJudge | None:
        """Who judges, if somebody does."""
        if not self.judge_url:
            return None
        key = os.environ.get(API_KEY, "EMPTY")
        return ServerJudge(self.judge_url, self.judge_model, api_key=key, parse=self.judge_parse)


class FormalSettings(_JudgedSettings):
    """What may be set of MemoryArena's formal reasoning."""

    judge_sees_question: bool = False
    """Off is official."""


class ShoppingSettings(_JudgedSettings):
    """What may be set of MemoryArena's shopping."""

    products: str = "items.json"
    """File of the catalogue."""
    per_category: int | None = Field(None, ge=1)
    """Only the first so many bundles of each category; 10 is the official default."""
    leak_history: bool = False
    leak_feedback: bool = False
    """Leaks of the truth, officially off; they stand in the name of the suite when on."""


def _travel(settings: TravelSettings) -> Suite:
    return Travel(
        Path(settings.folder),
        Path(settings.tables),
        strict_missing=settings.strict_missing,
        plan_by_tool=settings.plan_by_tool,
    )


def _formal(subject: Subject, settings: FormalSettings) -> Suite:
    return Formal(
        Path(settings.folder),
        subject,
        judge=settings.judge(),
        judge_sees_question=settings.judge_sees_question,
    )


def _shopping(settings: ShoppingSettings) -> Suite:
    return Shopping(
        Path(settings.folder),
        Catalogue.open(Path(settings.products)),
        judge=settings.judge(),
        per_category=settings.per_category,
        leak_history=settings.leak_history,
        leak_feedback=settings.leak_feedback,
    )


def _tau3(domain: Domain) -> Callable[[Tau3Settings], Suite]:
    def make(settings: Tau3Settings) -> Suite:
        key = os.environ.get(API_KEY, "EMPTY")
        user = Server(settings.user_url, settings.user_model, key, settings.user_temperature)
        judge = Server(settings.judge_url, settings.judge_model, key) if settings.judge_url else None
        suite = Tau3(domain, user=user, judge=judge, limits=Limits(settings.max_steps, settings.max_errors))
        return suite

    return make


SUITES: dict[str, SuiteInfo] = {
    "dependence": SuiteInfo(
        "decisions that need facts of earlier requests; ours, offline, no judge",
        DependenceSettings,
        Dependence,
    ),
    "tau3-airline": SuiteInfo(
        "τ³-bench airline, 50 tasks, no judge", Tau3Settings, _tau3("airline"), needs=TAU3_NEEDS
    ),
    "tau3-retail": SuiteInfo(
        "τ³-bench retail, 114 tasks, 40 of them with a judge", Tau3Settings, _tau3("retail"), needs=TAU3_NEEDS
    ),
    "memory_arena_travel": SuiteInfo(
        "MemoryArena group travel, 270 groups, no judge",
        TravelSettings,
        _travel,
        needs=f"{ARENA}; TravelPlanner's tables",
    ),
    "memory_arena_math": SuiteInfo(
        "MemoryArena mathematics, 40 papers",
        FormalSettings,
        partial(_formal, "math"),
        needs=f"{ARENA}; a judge",
    ),
    "memory_arena_phys": SuiteInfo(
        "MemoryArena physics, 20 papers",
        FormalSettings,
        partial(_formal, "phys"),
        needs=f"{ARENA}; a judge",
    ),
    "memory_arena_shopping": SuiteInfo(
        "MemoryArena shopping, 150 bundles", ShoppingSettings, _shopping, needs=f"{ARENA}; a product file"
    ),
}


def make_suite(name: str, settings: Mapping[str, Any]) -> Suite:
    """A suite with its settings.

    Raises:
        UsageError: an unknown suite, an unknown setting or a bad value; or its data isn't there.
    """
    if name not in SUITES:
        raise UsageError(f"unknown suite {name!r}", hint=f"Suites: {', '.join(SUITES)}.")
    try:
        chosen = SUITES[name].settings.model_validate(dict(settings))
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        known = ", ".join(SUITES[name].settings.model_fields)
        raise UsageError(f"setting {field!r} of {name}: {fault['msg']}", hint=f"Settings: {known}.") from None
    suite = SUITES[name].make(chosen)
    suite.settings = chosen.model_dump()
    return suite
