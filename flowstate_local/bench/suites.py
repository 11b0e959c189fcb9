"""The suites by name: what may be set of each, and how it is made."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowstate_local.bench.dependence.suite import Dependence, DependenceSettings
from flowstate_local.bench.memory_arena.formal import Formal, FormalSettings
from flowstate_local.bench.memory_arena.shopping import Shopping, ShoppingSettings
from flowstate_local.bench.memory_arena.travel import Travel, TravelSettings
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


def _tau3(domain: Domain) -> Callable[[Tau3Settings], Suite]:
    def make(settings: Tau3Settings) -> Suite:
        key = os.environ.get(API_KEY, "EMPTY")
        user = Server(settings.user_url, settings.user_model, key, settings.user_temperature)
        judge = Server(settings.judge_url, settings.judge_model, key) if settings.judge_url else None
        suite = Tau3(domain, user=user, judge=judge, limits=Limits(settings.max_steps, settings.max_errors))
        suite.settings = settings.model_dump()
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
        Travel,
        needs=f"{ARENA}; TravelPlanner's tables",
    ),
    "memory_arena_math": SuiteInfo(
        "MemoryArena mathematics, 40 papers",
        FormalSettings,
        partial(Formal, "math"),
        needs=f"{ARENA}; a judge",
    ),
    "memory_arena_physics": SuiteInfo(
        "MemoryArena physics, 20 papers",
        FormalSettings,
        partial(Formal, "physics"),
        needs=f"{ARENA}; a judge",
    ),
    "memory_arena_shopping": SuiteInfo(
        "MemoryArena shopping, 150 bundles", ShoppingSettings, Shopping, needs=f"{ARENA}; a product file"
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
        return SUITES[name].make(SUITES[name].settings.model_validate(dict(settings)))
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(map(str, fault["loc"]))
        known = ", ".join(SUITES[name].settings.model_fields)
        raise UsageError(f"setting {field!r} of {name}: {fault['msg']}", hint=f"Settings: {known}.") from None
