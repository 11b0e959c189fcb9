"""From whatever a user may write after --model to something an engine can load."""

import re
from pathlib import Path

from flowstate_local.errors import ModelError, UsageError
from flowstate_local.models import hub
from flowstate_local.models.catalogue import CATALOGUE, unknown
from flowstate_local.models.progress import Progress
from flowstate_local.models.weights import fetch

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*", re.ASCII)


def resolve(
    model: str | Path, *, precision: str | None = None, progress: Progress | None = None
) -> Path | str:
    """Find the weights that `model` means.

    Args:
        model: a catalogue name (fetched if needed), a folder with a config.json, or a hub id (owner/name).
        precision: "bf16" or "int8", for catalogue names only; None chooses by size and hardware.
        progress: told about each stage of a fetch.

    Returns:
        A local folder, or the hub id itself if the hub has it and the local cache has not.

    Raises:
        UnknownModel: it means nothing here; the message lists near names.
        UsageError: a precision was given for weights that aren't converted here.
        ModelError: as `fetch` raises them, or the folder holds no model.
    """
    name = str(model)
    if name.lower() in CATALOGUE:
        return fetch(name, precision=precision, progress=progress)
    if precision is not None:
        raise UsageError(
            f"{name} is used as it is, so no precision can be chosen", hint="Leave the precision away."
        )
    path = Path(name).expanduser()
    if path.exists():
        return _folder(path)
    if _HUB_ID.fullmatch(name):
        return hub.resolve(name)
    raise unknown(name)


def _folder(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    what = "has no config.json" if path.is_dir() else "is a file, not a folder"
    raise ModelError(
        f"{path} {what}, so no engine can load it",
        hint="Give the folder that holds config.json, the tokenizer and the safetensors files.",
    )
