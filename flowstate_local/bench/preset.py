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


def shipped() -> dict[str, Preset]:
    """The presets of the package by name."""
    names = sorted(
        file.name.removesuffix(".yaml") for file in _SHIPPED.iterdir() if file.name.endswith(".yaml")
    )
    return {name: load_preset(name) for name in names}


def load_preset(name: str) -> Preset:
    """A preset by name, or from a YAML file.

    Raises:
        UsageError: there's no such preset, or the file isn't one.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _SHIPPED / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(f.name.removesuffix(".yaml") for f in _SHIPPED.iterdir() if f.is_file()))
        raise UsageError(f"no preset {name!r}", hint=f"Presets: {known}; or the path of a YAML file.")
    try:
        return Preset.model_validate(yaml.safe_load(path.read_text()))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} is no YAML: {error}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(f"{name}: {'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}") from None
