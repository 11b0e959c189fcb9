"""The suites by name: what may be set of each, and how it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from flowstate_local.bench.dependence.suite import Dependence, DependenceSettings
from flowstate_local.bench.suite import Suite
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


SUITES: dict[str, SuiteInfo] = {
    "dependence": SuiteInfo(
        "decisions that need facts of earlier requests; ours, offline, no judge",
        DependenceSettings,
        Dependence,
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
