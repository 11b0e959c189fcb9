"""Group travel as a suite: travellers join a trip one by one, each with wishes that refer to those before."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.bench.memory_arena.load import travel_rows
from flowstate_local.bench.memory_arena.metrics import Trials, depth_figures, mean, mean_figure, outcomes
from flowstate_local.bench.memory_arena.plan import Plan, parse_plan, plan_text
from flowstate_local.bench.memory_arena.rows import TravelRow
from flowstate_local.bench.memory_arena.tables import Tables
from flowstate_local.bench.memory_arena.travel_score import (
    PersonScore,
    score_group,
    score_person,
)
from flowstate_local.bench.memory_arena.travel_tools import FIRST_PLAN, Desk, travel_tools
from flowstate_local.bench.suite import Figure, Played, Seat
from flowstate_local.errors import UsageError

INSTRUCTIONS = """You plan a group trip. The first request tells the plan of the first traveller, which is settled: only remember it. Each later request comes from one more traveller.
Whoever joins has the first traveller's plan in every slot for which they ask nothing else. What they ask for may refer to the complete plan of any traveller before them.
Plan every day of the trip for the one who asks, with plan_day, in all slots; then reply. Write restaurants, attractions and accommodations as "Name, City", as in the first plan, with ";" after each attraction."""


class Travel:
    """See `bench.suite.Suite`.

    Args:
        folder: with the official files.
        tables: folder with the tables of TravelPlanner.
        strict_missing: whether a traveller for whom nothing was submitted counts as failed; officially nobody
            counts them at all.
    """

    name = "memory_arena_travel"
    primary = "sPS"

    def __init__(
        self, folder: Path, tables: Path, *, strict_missing: bool = True, plan_by_tool: bool = False
    ) -> None:
        loaded = travel_rows(folder)
        self.rows: Mapping[str, TravelRow] = loaded.rows
        self.remarks = loaded.remarks
        self.settings: Mapping[str, Any] = {}
        self.strict_missing = strict_missing
        self.plan_by_tool = plan_by_tool
        self._tables = Tables.open(tables)

    def task_ids(self) -> list[str]:
        """See `Suite.task_ids`."""
        return list(self.rows)

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`. Nothing is left to chance here, so `seed` isn't used."""
        row = _row(self.rows, task_id)
        desk = Desk(n_days=max(day.days for day in row.base))
        first = base_plan(row) if self.plan_by_tool else ""
        method = seat(travel_tools(desk, self._tables, first), INSTRUCTIONS)
        try:
            answers = [await method.ask(base_request(row, by_tool=self.plan_by_tool))]
            plans: list[Plan] = []
            for name, question in zip(row.names, row.questions, strict=True):
                answers.append(answer := await _ask(method, desk, name, question))
                plans.append(desk.plan or parse_plan(answer.message, name))
        finally:
            await method.close()
        return Played(*self._judged(row, plans, answers))

    def _judged(
        self, row: TravelRow, plans: list[Plan], answers: list[Answer]
    ) -> tuple[dict[str, float | None], tuple[Answer, ...], dict[str, Any]]:
        scores = [score_person(plan, gold, row.base) for plan, gold in zip(plans, row.answers, strict=True)]
        counted = [
            score if plan or self.strict_missing else None for plan, score in zip(plans, scores, strict=True)
        ]
        persons = [
            _detail(place, row, plan, score, answer)
            for place, (plan, score, answer) in enumerate(zip(plans, scores, answers[1:], strict=True))
        ]
        return score_group(counted), tuple(answers), {"id": row.id, "persons": persons}

    def figures(self, played: Trials) -> list[Figure]:
        """See `Suite.figures`. PS is over travellers, SR over groups, sPS over groups."""
        depths = {task: len(_row(self.rows, task).questions) for task in played}
        missing = "without a plan = failed" if self.strict_missing else "without a plan = not counted"
        given = "the first plan is read with a tool" if self.plan_by_tool else "the first plan is told"
        note = "; ".join((missing, given, *self.remarks))
        passed, n = mean(one for row in outcomes(played, depths) for one in row)
        return [
            mean_figure(played, "sPS", note=note),
            Figure("PS", passed, n, f"travellers of all groups together; {missing}"),
            mean_figure(played, "SR", note="groups in which every traveller passes"),
            *self._floor(played),
            *depth_figures(played, depths),
        ]

    def _floor(self, played: Trials) -> list[Figure]:
        """What copying the first traveller's plan for everybody comes to, in the same tasks."""
        rows = [_row(self.rows, task) for task in played]
        groups = [[score_person(row.base, gold, row.base) for gold in row.answers] for row in rows]
        passed, n = mean(float(person.passed) for group in groups for person in group)
        constraints, n_groups = mean(score_group(group)["sPS"] for group in groups)
        note = "the floor: the first traveller's plan, copied for everybody"
        return [
            Figure("sPS of a copy", constraints, n_groups, note),
            Figure("PS of a copy", passed, n, note),
        ]


def base_plan(row: TravelRow) -> str:
    """The settled plan in its text form."""
    return plan_text(row.base_person.name, row.base)


def base_request(row: TravelRow, *, by_tool: bool = False) -> str:
    """The first request: what the first traveller wanted, and the plan that was made, or where to read it."""
    plan = f"Read it with {FIRST_PLAN}, now." if by_tool else base_plan(row)
    return f"{row.base_person.query.strip()}\n\nThis is settled:\n{plan}"


async def _ask(method: Method, desk: Desk, name: str, question: str) -> Answer:
    desk.begin(name)
    return await method.ask(question)


def _detail(place: int, row: TravelRow, plan: Plan, score: PersonScore, answer: Answer) -> dict[str, Any]:
    return {
        "person_idx": place + 1,
        "name": row.names[place],
        "outcome": answer.outcome,
        "plan": [day.model_dump() for day in plan],
        "gold": [day.model_dump() for day in row.answers[place]],
        "missed": [list(one) for one in score.missed],
        "constraints": [list(one) for one in score.constraints],
    }


def _row(rows: Mapping[str, TravelRow], task_id: str) -> TravelRow:
    if task_id not in rows:
        raise UsageError(f"there is no travel task {task_id!r}")
    return rows[task_id]
