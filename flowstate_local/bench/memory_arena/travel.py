"""Group travel as a suite: the base plan is told, then each joiner asks for a plan; scored without a judge."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.memory_arena.depth import nauc
from flowstate_local.bench.memory_arena.rows import Day, TravelRow, load
from flowstate_local.bench.memory_arena.travel_score import read_plans, score_person, soft
from flowstate_local.bench.memory_arena.travel_tools import Handed, Tables, tools_of
from flowstate_local.bench.suite import Figure, Played, Seat

INSTRUCTIONS = """A group travels together. The plan of the first person is told to you; then others join, one in each request.
The plan of a joiner is the plan of the first person, with the same flights and attractions, but for what the joiner asks for.
To join somebody in a slot means to have the very same entry there, as it stands in that person's plan.
Write entries as they stand in the plans and tables, followed by a comma and the city: "Coco Bambu, Rockford".
Hand in every plan with submit_plan: all days, all slots, also those that stay as they are.
"""
_NAME = re.compile(r"I am (\w+)\.")
FLOOR = "copying the base plan for everybody: about 0.1, and sPS 0"


class TravelSettings(BaseModel):
    """What may be set of group travel."""

    model_config = ConfigDict(extra="forbid")

    folder: str = "memoryarena"
    """Of the official files."""
    tables: str = "travel_planner_database"
    """Of TravelPlanner's database."""


class Travel:
    """See `suite.Suite`."""

    name = "memory_arena_travel"
    primary = "PS"

    def __init__(self, settings: TravelSettings) -> None:
        self.settings: Mapping[str, Any] = settings.model_dump()
        self._tables = Tables(Path(settings.tables))
        rows, self._warning = load(Path(settings.folder), "group_travel_planner", TravelRow)
        self._rows = {str(row.id): row for row in rows}

    def task_ids(self) -> Sequence[str]:
        """See `Suite.task_ids`."""
        return list(self._rows)

    def row(self, task_id: str) -> TravelRow:
        """One of them, for a ceiling or a floor."""
        return self._rows[task_id]

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`."""
        row, handed = self._rows[task_id], Handed()
        method = seat(tools_of(self._tables, handed), INSTRUCTIONS)
        answers = [await method.ask(told_base(row))]
        plans: list[list[Day]] = []
        for question in row.questions:
            handed.plan = []
            answer = await method.ask(question)
            answers.append(answer)
            plans.append(handed.plan or _written(answer, question))
        base = row.base_person.daily_plans
        persons = [score_person(plan, gold, base) for plan, gold in zip(plans, row.answers, strict=True)]
        passed = [float(person.passed) for person in persons]
        return Played(
            scores={"PS": sum(passed) / len(passed), "SR": float(all(passed)), "sPS": soft(persons)},
            answers=tuple(answers),
            detail={
                "scores_by_request": passed,
                "persons": [
                    {"person_idx": i, "plan": [day.model_dump() for day in plan]}
                    for i, plan in enumerate(plans, 1)
                ],
            },
        )

    def figures(self, played: Mapping[str, Sequence[Mapping[str, float | None] | None]]) -> list[Figure]:
        """See `Suite.figures`. PS is over persons, SR and sPS over groups."""
        persons = {task: len(self._rows[task].questions) for task in played}
        trials = [(task, one or {}) for task, ones in played.items() for one in ones]
        n_persons = sum(persons[task] for task, _ in trials)
        passed = sum((one.get("PS") or 0.0) * persons[task] for task, one in trials)
        softs = [one.get("sPS") if one else 0.0 for _, one in trials]
        measured = [value for value in softs if value is not None]
        note = f"{self._warning}; {FLOOR}" if self._warning else FLOOR
        return [
            Figure("PS", passed / n_persons if n_persons else None, n_persons, note),
            Figure(
                "SR",
                _mean([float(one.get("SR") or 0.0) for _, one in trials]),
                len(trials),
                "all persons of a group",
            ),
            Figure("sPS", _mean(measured), len(measured), "constraints met, by group"),
        ]


def told_base(row: TravelRow) -> str:
    """The first request: who travels, and the plan."""
    person = row.base_person
    plan = json.dumps([day.model_dump() for day in person.daily_plans], ensure_ascii=False)
    return f"Remember the final plan of {person.name}, whole: others will join. {person.query}\nPlan of {person.name}: {plan}"


def submission(row_id: str, detail: Mapping[str, Any]) -> dict[str, Any]:
    """A line for the official scorer: `{id, persons: [{person_idx, plan}]}`."""
    return {"id": int(row_id), "persons": detail["persons"]}


def curve(details: Sequence[Mapping[str, Any]]) -> float | None:
    """nAUC, ours, over the persons of all groups."""
    return nauc([detail["scores_by_request"] for detail in details])


def _written(answer: Answer, question: str) -> list[Day]:
    """A plan that was only written into the reply, in the official text form."""
    found = _NAME.search(question)
    plans = read_plans(answer.message)
    return plans.get(found[1], []) if found else []


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
