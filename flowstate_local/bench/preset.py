"""Presets: a suite, its settings and a protocol, as YAML. Those of the paper ship with the package."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowstate_local.errors import UsageError

_SHIPPED = files("flowstate_local.bench") / "presets"


class Preset(BaseModel):
    """What a run does unless the command line says otherwise. The defaults are the paper's decoding parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    about: str = ""
    settings: dict[str, Any] = {}
    """Of the suite."""
    methods: str = "all"
    trials: int = Field(1, ge=1, le=1_000)
    seed: int = 0
    concurrency: int = Field(8, ge=1, le=10_000)
    max_steps: int = Field(16, ge=1, le=1_000)
    """Of a request."""
    max_tokens: int = Field(2_500, ge=200, le=1_000_000)
    """Of a step."""
    memory_tokens: int = Field(2_048, ge=0, le=1_000_000)
    temperature: float = Field(0.1, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    window: int = Field(8_192, ge=1_024, le=10_000_000)


class Series(BaseModel):
    """Several presets that are run one after the other: a whole protocol."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    presets: tuple[str, ...] = Field(min_length=1)
    about: str = ""
    cost: str = ""
    """About how long it takes, and on what."""


def shipped() -> dict[str, Preset | Series]:
    """The presets of the package by name."""
    return {name: load(name) for name in _names()}


def load(name: str) -> Preset | Series:
    """A preset by name, or from a YAML file.

    Raises:
        UsageError: there's no such preset, or the file isn't one.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _SHIPPED / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(
            f"no preset {name!r}", hint=f"Presets: {', '.join(_names())}; or the path of a YAML file."
        )
    try:
        said = yaml.safe_load(path.read_text())
        kind = Series if isinstance(said, dict) and "presets" in said else Preset
        return kind.model_validate(said)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} is no YAML: {error}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(f"{name}: {'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}") from None


def load_all(name: str) -> dict[str, Preset]:
    """The presets that `name` stands for, one or a series.

    Raises:
        UsageError: as `load`; or a series names a series.
    """
    found = load(name)
    if isinstance(found, Preset):
        return {Path(name).stem: found}
    presets = {one: load(one) for one in found.presets}
    for one, preset in presets.items():
        if isinstance(preset, Series):
            raise UsageError(f"{name}: {one} is a series itself")
    return {one: preset for one, preset in presets.items() if isinstance(preset, Preset)}


def _names() -> list[str]:
    entries = (file.name for file in _SHIPPED.iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))
