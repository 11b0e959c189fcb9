"""How plans are compared: slot by slot, by likeness of their texts.

Weak spots of the published rule, kept so that figures can be compared: a wrong flight on the same route passes, and so
does any text that another begins with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from flowstate_local.bench.memory_arena.metrics import at, mean
from flowstate_local.bench.memory_arena.plan import EMPTY, SLOTS, Plan, by_number

THRESHOLD = 0.7

Place = tuple[int, str]
"""Day and slot."""


def sim(submitted: str, gold: str) -> float:
    """Likeness of two slots, from 0 to 1: the ratio of difflib after both are cut to the shorter one's length."""
    a, b = submitted.strip().lower(), gold.strip().lower()
    if not a or not b:
        return 0.0
    if a == b == EMPTY:
        return 1.0
    shorter = min(len(a), len(b))
    return SequenceMatcher(None, a[:shorter], b[:shorter]).ratio()


@dataclass(frozen=True)
class PersonScore:
    """One traveller's plan against the right one."""

    missed: tuple[Place, ...]
    """Slots that don't pass."""
    constraints: tuple[Place, ...]
    """Slots in which the right plan differs from the first traveller's."""

    @property
    def passed(self) -> bool:
        """Whether every slot of every day passes."""
        return not self.missed

    @property
    def met(self) -> float | None:
        """Share of the constraint slots that pass; None if there are none."""
        if not self.constraints:
            return None
        return sum(place not in self.missed for place in self.constraints) / len(self.constraints)


def score_person(plan: Plan, gold: Plan, base: Plan) -> PersonScore:
    """Compare a plan; days and slots that it lacks count as empty, days that gold lacks aren't looked at."""
    return PersonScore(_differing(plan, gold), _differing(base, gold))


def _differing(plan: Plan, gold: Plan) -> tuple[Place, ...]:
    days = by_number(plan)
    return tuple(
        (day.days, slot)
        for day in gold
        for slot in SLOTS
        if sim(days[day.days].slot(slot) if day.days in days else EMPTY, day.slot(slot)) < THRESHOLD
    )


def score_group(persons: Sequence[PersonScore | None]) -> dict[str, float | None]:
    """The scores of a group: SR, PS, sPS and SR@k.

    Args:
        persons: one for each traveller; None for one who isn't counted, as no plan was submitted.
    """
    passed = [None if person is None else float(person.passed) for person in persons]
    submitted = [one for one in passed if one is not None]
    return {
        "SR": float(all(submitted)) if submitted else None,
        "PS": mean(passed)[0],
        "sPS": mean(person.met for person in persons if person is not None)[0],
        **{at(k): one for k, one in enumerate(passed, start=1)},
    }
