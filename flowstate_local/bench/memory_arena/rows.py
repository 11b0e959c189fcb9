"""The official rows: read from the user's folder, checked against their hashes, refused with their id if broken."""

import hashlib
import logging
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flowstate_local.errors import UsageError

logger = logging.getLogger(__name__)

Config = Literal["bundled_shopping", "formal_reasoning_math", "formal_reasoning_phys", "group_travel_planner"]
HASHES: dict[str, str] = {
    "bundled_shopping": "4411a2da528a33dc6aca519b49cc225895363f18b2d19b191fddb501200134ef",
    "formal_reasoning_math": "ff5b0ad575847c7476a02d1e35661592a833bd0cff384cb54bc6f35b46de7803",
    "formal_reasoning_phys": "580862006af2ff2bfc8c5d2d2b9a60bf33a46cbb64f27d60a2bfe039aec61cf6",
    "group_travel_planner": "2f955d444f6f3ad3c5da2064359ab19f8fc1f90621ff9d00723a450a009c3732",
}
"""SHA-256 of each data.jsonl at revision da1a37c8, as a third party lists them."""
COUNTS: dict[str, int] = {
    "bundled_shopping": 150,
    "formal_reasoning_math": 40,
    "formal_reasoning_phys": 20,
    "group_travel_planner": 270,
}
SLOTS = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""What is scored of a day."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Day(_Row):
    """One day of a plan; "-" is nothing."""

    days: int = 0
    current_city: str = "-"
    transportation: str = "-"
    breakfast: str = "-"
    attraction: str = "-"
    lunch: str = "-"
    dinner: str = "-"
    accommodation: str = "-"

    @model_validator(mode="before")
    @classmethod
    def _named_day(cls, value: Any) -> Any:
        if isinstance(value, dict) and "days" not in value and "day" in value:
            return {**value, "days": value["day"]}
        return value

    def slot(self, name: str) -> str:
        """One of SLOTS."""
        return str(getattr(self, name))


class Person(_Row):
    """Who travels first."""

    name: str
    query: str
    daily_plans: tuple[Day, ...]


class _Questions(_Row):
    id: int
    questions: Annotated[tuple[str, ...], Field(min_length=1)]

    def _check_length(self, name: str, found: int) -> None:
        if found != len(self.questions):
            raise ValueError(f"{found} {name} for {len(self.questions)} questions")


class TravelRow(_Questions):
    """A group: a base person, and those who join one after the other."""

    base_person: Person
    answers: tuple[tuple[Day, ...], ...]

    @model_validator(mode="after")
    def _lengths(self) -> "TravelRow":
        self._check_length("answers", len(self.answers))
        return self


class FormalRow(_Questions):
    """A paper: questions in order, each with its background, which is mostly that of an earlier one."""

    paper_name: str
    answers: tuple[str, ...]
    backgrounds: tuple[str, ...]

    @model_validator(mode="after")
    def _lengths(self) -> "FormalRow":
        self._check_length("answers", len(self.answers))
        self._check_length("backgrounds", len(self.backgrounds))
        return self


class Target(_Row):
    """The right product."""

    target_asin: str
    attributes: tuple[str, ...]


class ShoppingRow(_Questions):
    """A bundle: six products that must go together."""

    category: str
    answers: tuple[Target, ...]

    @model_validator(mode="after")
    def _lengths(self) -> "ShoppingRow":
        self._check_length("answers", len(self.answers))
        return self


Row = TypeVar("Row", TravelRow, FormalRow, ShoppingRow)


def load(folder: Path, config: Config, kind: type[Row]) -> tuple[list[Row], str]:
    """The rows of a config, and a warning if they aren't those of the release ("" if they are).

    Args:
        folder: holds `CONFIG/data.jsonl` or `CONFIG.jsonl`.
        config: which.
        kind: what a row is.

    Raises:
        UsageError: the file isn't there, or a row is broken: names its line, its id and the field.
    """
    path = next(
        (p for p in (folder / config / "data.jsonl", folder / f"{config}.jsonl") if p.is_file()), None
    )
    if path is None:
        raise UsageError(
            f"{folder} holds no {config}/data.jsonl",
            hint="hf download ZexueHe/memoryarena --repo-type dataset --local-dir DIR, then --set folder=DIR",
        )
    raw = path.read_bytes()
    rows = [_row(line, number, path, kind) for number, line in enumerate(raw.splitlines(), 1) if line.strip()]
    ids = [row.id for row in rows]
    twice = next((i for i in ids if ids.count(i) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: the id {twice} is there twice")
    return rows, _warning(raw, config, len(rows))


def _row(line: bytes, number: int, path: Path, kind: type[Row]) -> Row:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "row"
        raise UsageError(f"{path}, line {number}{_id_of(line)}: {where}: {fault['msg']}") from None


def _id_of(line: bytes) -> str:
    head = line[:200].decode(errors="replace")
    _, found, rest = head.partition('"id":')
    return f" (id {rest.split(',')[0].strip()})" if found else ""


def _warning(raw: bytes, config: str, n_rows: int) -> str:
    unix = raw.replace(b"\r\n", b"\n")
    forms = (unix, unix.replace(b"\n", b"\r\n"))
    if any(hashlib.sha256(form).hexdigest() == HASHES[config] for form in forms):
        return ""
    warning = f"NOT COMPARABLE: {n_rows} of {COUNTS[config]} rows, not those of the release"
    logger.warning("%s: %s", config, warning)
    return warning
