"""Travel, scored from the described formulas: slots that are alike, persons who pass, groups, constraints met."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from flowstate_local.bench.memory_arena.rows import SLOTS, Day

ALIKE = 0.7
Plan = Sequence[Day]

_SECTION = re.compile(r"^=+\s*(.+?)'s Plan\s*=+\s*$", re.MULTILINE)
_DAY = re.compile(r"^\s*Day (\d+):\s*$")


def sim(a: str, b: str) -> float:
    """How alike two slots are, 0..1. The longer one is cut to the length of the shorter, as the official scorer does."""
    a, b = a.strip().lower(), b.strip().lower()
    if not a or not b:
        return 0.0
    if a == b == "-":
        return 1.0
    length = min(len(a), len(b))
    return SequenceMatcher(None, a[:length], b[:length]).ratio()


@dataclass(frozen=True)
class PersonScore:
    """One joiner."""

    passed: bool
    """Every slot of every day is right."""
    constraints: int
    """Slots in which the right plan differs from the base person's."""
    met: int
    """Of these."""


def score_person(submitted: Plan, gold: Plan, base: Plan) -> PersonScore:
    """Score a plan against the right one; a day or slot that isn't there counts as "-"."""
    ours, bases = _by_day(submitted), _by_day(base)
    passed, constraints, met = True, 0, 0
    for number, day in _by_day(gold).items():
        mine, old = ours.get(number, Day(days=number)), bases.get(number, Day(days=number))
        for slot in SLOTS:
            right = sim(mine.slot(slot), day.slot(slot)) >= ALIKE
            passed = passed and right
            if sim(day.slot(slot), old.slot(slot)) < ALIKE:
                constraints += 1
                met += right
    return PersonScore(passed, constraints, met)


def soft(persons: Sequence[PersonScore]) -> float | None:
    """SPS of a group: mean share of constraints met; who has none is left out, None if nobody has any."""
    shares = [person.met / person.constraints for person in persons if person.constraints]
    return sum(shares) / len(shares) if shares else None


def read_plans(text: str) -> dict[str, list[Day]]:
    """Plans in the official text form, by name: "=== NAME's Plan ===", "Day N:", "key: value". A repeated name counts last."""
    plans: dict[str, list[Day]] = {}
    heads = list(_SECTION.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):
        plans[head[1].strip()] = _days(text[head.end() : end])
    return plans


def _days(body: str) -> list[Day]:
    days: dict[int, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in body.splitlines():
        if found := _DAY.match(line):
            current = days.setdefault(int(found[1]), {})
        elif current is not None and ":" in line:
            key, _, value = line.partition(":")
            current[key.strip().lower().replace(" ", "_")] = value.strip()
    known = set(Day.model_fields) - {"days"}
    return [Day(days=n, **{k: v for k, v in one.items() if k in known}) for n, one in days.items()]


def _by_day(plan: Plan) -> Mapping[int, Day]:
    return {day.days or place: day for place, day in enumerate(plan, start=1)}
