"""Reads the official files, and says where they differ from what was published."""

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import ValidationError

from flowstate_local.bench.memory_arena.rows import FormalRow, Row, ShoppingRow, TravelRow
from flowstate_local.errors import UsageError

logger = logging.getLogger(__name__)

Subject = Literal["math", "phys"]
R = TypeVar("R", bound=Row)

REVISION = "da1a37c8b19280e18627ca01cf368195a5e1d92e"
DOWNLOAD = (
    "The data (12 MB, CC-BY-4.0) is fetched by you, once: "
    f"`hf download ZexueHe/memoryarena --repo-type dataset --revision {REVISION} --local-dir FOLDER`"
)


@dataclass(frozen=True)
class Published:
    """What is known of an official file."""

    tasks: int
    subtasks: int
    sha256: str
    """Of the file as a third party listed it; whether its line ends were LF or CRLF isn't known."""


PUBLISHED = {
    "bundled_shopping": Published(
        150, 900, "4411a2da528a33dc6aca519b49cc225895363f18b2d19b191fddb501200134ef"
    ),
    "formal_reasoning_math": Published(
        40, 354, "ff5b0ad575847c7476a02d1e35661592a833bd0cff384cb54bc6f35b46de7803"
    ),
    "formal_reasoning_phys": Published(
        20, 86, "580862006af2ff2bfc8c5d2d2b9a60bf33a46cbb64f27d60a2bfe039aec61cf6"
    ),
    "group_travel_planner": Published(
        270, 1_869, "2f955d444f6f3ad3c5da2064359ab19f8fc1f90621ff9d00723a450a009c3732"
    ),
}


@dataclass(frozen=True)
class Loaded(Generic[R]):
    """The rows of a file, by their ids as text, in order."""

    rows: dict[str, R]
    remarks: tuple[str, ...]
    """Where the file differs from the published one: figures from it can't be compared with others."""


def travel_rows(folder: Path) -> Loaded[TravelRow]:
    """The groups of travellers. Raises UsageError."""
    return _load(folder, "group_travel_planner", TravelRow)


def formal_rows(folder: Path, subject: Subject) -> Loaded[FormalRow]:
    """The papers. Raises UsageError."""
    return _load(folder, f"formal_reasoning_{subject}", FormalRow)


def shopping_rows(folder: Path) -> Loaded[ShoppingRow]:
    """The bundles. Raises UsageError."""
    return _load(folder, "bundled_shopping", ShoppingRow)


def _load(folder: Path, config: str, model: type[R]) -> Loaded[R]:
    path = _find(Path(folder), config)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", hint=DOWNLOAD) from error
    rows: dict[str, R] = {}
    for row in _parse(path, raw, model):
        if str(row.id) in rows:
            raise UsageError(f"{path}: row {row.id}: there are two rows of this id", hint=DOWNLOAD)
        rows[str(row.id)] = row
    if not rows:
        raise UsageError(f"{path} has no rows", hint=DOWNLOAD)
    remarks = tuple(_remarks(config, raw, rows))
    for remark in remarks:
        logger.warning("%s: %s", path, remark)
    return Loaded(rows, remarks)


def _find(folder: Path, config: str) -> Path:
    places = [folder / config / "data.jsonl", folder / f"{config}.jsonl"]
    for place in places:
        if place.is_file():
            return place
    raise UsageError(f"there is neither {places[0]} nor {places[1]}", hint=DOWNLOAD)


def _parse(path: Path, raw: bytes, model: type[R]) -> Iterator[R]:
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield model.model_validate_json(line)
        except ValidationError as error:
            raise UsageError(f"{path}:{number}: {_id_of(line)}{_wrong(error)}", hint=DOWNLOAD) from None


def _id_of(line: bytes) -> str:
    """As the row says it, for the message."""
    try:
        found: Any = json.loads(line)
    except ValueError:
        return ""
    return f"row {found['id']!r}: " if isinstance(found, dict) and "id" in found else ""


def _wrong(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"]))
    return f"field {field}: {first['msg']}" if field else str(first["msg"])


def _remarks(config: str, raw: bytes, rows: dict[str, R]) -> Iterator[str]:
    published = PUBLISHED[config]
    subtasks = sum(len(row.questions) for row in rows.values())
    if (len(rows), subtasks) != (published.tasks, published.subtasks):
        yield (
            f"{len(rows)} tasks with {subtasks} subtasks; published: {published.tasks} with {published.subtasks}"
        )
    lf = raw.replace(b"\r\n", b"\n")
    if published.sha256 not in (_sha256(raw), _sha256(lf), _sha256(lf.replace(b"\n", b"\r\n"))):
        yield f"its SHA-256 is not the published one, with LF or with CRLF: {_sha256(raw)}"


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
