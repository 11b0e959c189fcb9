"""A traveller's plan: its days, and the text form in which MemoryArena writes and reads it."""

import re
from collections.abc import Iterable

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

SLOTS = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""What is scored of a day, in the order of the text form. `current_city` is part of a day and isn't scored."""
EMPTY = "-"
"""A slot with nothing in it."""

_SECTION = re.compile(r"^[\s#*]*=+\s*(.+?)['’]s\s+plan\s*=+[\s*]*$", re.IGNORECASE)
_DAY = re.compile(r"^[\s#*\-]*day\s+(\d{1,3})\b[\s*]*:?(.*)$", re.IGNORECASE)
_ENTRY = re.compile(r"^[\s*#>•-]*([A-Za-z][A-Za-z _]*?)[\s*]*:(.*)$")


class Day(BaseModel):
    """One day of a plan."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)

    days: int = Field(validation_alias=AliasChoices("days", "day"), ge=1)
    """Number of the day, from 1, under the name that the data set uses."""
    current_city: str = EMPTY
    transportation: str = EMPTY
    breakfast: str = EMPTY
    attraction: str = EMPTY
    """Each with a ";" after it."""
    lunch: str = EMPTY
    dinner: str = EMPTY
    accommodation: str = EMPTY

    def slot(self, name: str) -> str:
        """What stands in a slot. A blank one is empty."""
        return str(getattr(self, name)).strip() or EMPTY


Plan = tuple[Day, ...]


def by_number(plan: Iterable[Day]) -> dict[int, Day]:
    """Days by their numbers; of two with the same number, the later one."""
    return {day.days: day for day in plan}


def plan_text(name: str, plan: Plan) -> str:
    """The text form: a headline, then each day with one line per slot."""
    lines = [f"=== {name}'s Plan ==="]
    for day in plan:
        lines.append(f"Day {day.days}:")
        if day.slot("current_city") != EMPTY:
            lines.append(f"Current City: {day.slot('current_city')}")
        lines += [f"{slot.capitalize()}: {day.slot(slot)}" for slot in SLOTS]
    return "\n".join(lines)


def parse_plan(text: str, name: str) -> Plan:
    """Read one traveller's plan out of a reply; () if there is none.

    The section of that name counts, and of several the last, as in MemoryArena. Without any headline all of the text
    is taken for this traveller's. Bullets and emphasis around days and keys are let pass; other lines are skipped.
    """
    found: dict[int, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in _section_of(text, name):
        if day := _DAY.match(line):
            current = found.setdefault(int(day[1]), {})
        elif current is not None and (entry := _ENTRY.match(line)):
            current[entry[1].strip().lower().replace(" ", "_")] = entry[2].strip(" \t*") or EMPTY
    return tuple(
        Day(days=number, **{key: slots[key] for key in ("current_city", *SLOTS) if key in slots})
        for number, slots in sorted(found.items())
        if number
    )


def _section_of(text: str, name: str) -> list[str]:
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    everything = text.splitlines()
    for line in everything:
        if headline := _SECTION.match(line):
            lines = sections[headline[1].strip().casefold()] = []
        else:
            lines.append(line)
    return sections.get(name.strip().casefold(), []) if sections else everything
