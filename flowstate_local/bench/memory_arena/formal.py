"""Formal reasoning as a suite: the problems of a paper, one by one, in mathematics or physics; a judge decides."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.memory_arena.judge import Judge, Verdict, equivalence_prompt, spent
from flowstate_local.bench.memory_arena.load import Subject, formal_rows
from flowstate_local.bench.memory_arena.metrics import Trials, at, depth_figures, mean, mean_figure
from flowstate_local.bench.memory_arena.rows import FormalRow
from flowstate_local.bench.suite import Figure, Played, Seat
from flowstate_local.calculator import evaluate
from flowstate_local.errors import UsageError
from flowstate_local.tools import Toolbox, tool

INSTRUCTIONS = """The requests are problems from one paper. Later ones build on definitions, notation and results of earlier ones.
Work each problem out, and reply with the answer: complete, in one place, in LaTeX where it is a formula."""

_EMPTY_REPLY = Verdict(False, fault="empty reply, not judged")


class Formal:
    """See `bench.suite.Suite`.

    Args:
        folder: with the official files.
        subject: mathematics or physics.
        judge: decides while a task is played; without one, nothing is measured until `judged` is called.
        judge_sees_question: whether the judge is told what was asked; officially it isn't.
    """

    primary = "PS"

    def __init__(
        self,
        folder: Path,
        subject: Subject,
        *,
        judge: Judge | None = None,
        judge_sees_question: bool = False,
    ) -> None:
        loaded = formal_rows(folder, subject)
        self.name = f"memory_arena_{subject}"
        self.rows: Mapping[str, FormalRow] = loaded.rows
        self.remarks = loaded.remarks
        self.settings: Mapping[str, Any] = {}
        self.judge = judge
        self.judge_sees_question = judge_sees_question

    def task_ids(self) -> list[str]:
        """See `Suite.task_ids`."""
        return list(self.rows)

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`. Nothing is left to chance here, so `seed` isn't used."""
        row = _row(self.rows, task_id)
        method = seat(_tools(), INSTRUCTIONS)
        try:
            answers = [await method.ask(text) for text in requests_of(row)]
        finally:
            await method.close()
        detail = {"id": row.id, "paper_name": row.paper_name, "subtasks": _subtasks(row, answers)}
        judged = await self.judged(detail)
        return Played(judged.scores, tuple(answers), judged.detail)

    async def second_pass(
        self,
        task_id: str,
        scores: Mapping[str, float | None],
        detail: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> tuple[Mapping[str, float | None], Mapping[str, Any]]:
        """Scores and detail with the judge's verdicts; see `judged`."""
        played = await self.judged(detail, again=again)
        return played.scores, played.detail

    async def judged(self, detail: Mapping[str, Any], *, again: bool = False) -> Played:
        """The second pass: judge what was stored of a task. Without a judge only the scores are worked out.

        Args:
            detail: `Played.detail` of a task.
            again: judge anew what has a verdict, as with another judge.

        Returns:
            Scores and detail with the verdicts; no answers.
        """
        subtasks = list(detail["subtasks"])
        label = detail.get("judge", "")
        if self.judge is not None:
            subtasks = await asyncio.gather(*(self._with_verdict(one, again) for one in subtasks))
            label = f"{self.judge.label}{', sees the question' if self.judge_sees_question else ''}"
        tokens = spent(one["verdict"] for one in subtasks if one.get("verdict"))
        found = {**detail, "subtasks": subtasks, "judge": label, "judge_tokens": tokens}
        return Played(formal_scores(subtasks), (), found)

    async def _with_verdict(self, subtask: Mapping[str, Any], again: bool) -> dict[str, Any]:
        known = subtask.get("verdict") or {}
        if self.judge is None or (known.get("yes") is not None and not again):
            return dict(subtask)
        if not subtask["candidate"].strip():
            return {**subtask, "verdict": _EMPTY_REPLY.dump()}
        question = subtask["question"] if self.judge_sees_question else None
        verdict = await self.judge.ask(
            equivalence_prompt(subtask["candidate"], subtask["reference"], question)
        )
        return {**subtask, "verdict": verdict.dump()}

    def figures(self, played: Trials) -> list[Figure]:
        """See `Suite.figures`. PS and SR are means over tasks."""
        depths = {task: len(_row(self.rows, task).questions) for task in played}
        judge = self.judge.label if self.judge is not None else "see the details"
        sees = "sees" if self.judge_sees_question else "doesn't see"
        note = "; ".join((f"judge: {judge}; it {sees} the question", *self.remarks))
        return [
            mean_figure(played, "PS", note=note),
            mean_figure(played, "SR", note="tasks whose last subtask is right"),
            *depth_figures(played, depths),
        ]


def formal_scores(subtasks: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """PS, SR and SR@k of a task from the verdicts. PS is None until every subtask has one."""
    verdicts = [(one.get("verdict") or {}).get("yes") for one in subtasks]
    right = [None if yes is None else float(yes) for yes in verdicts]
    return {
        "PS": None if None in right else mean(right)[0],
        "SR": right[-1],
        **{at(k): one for k, one in enumerate(right, start=1)},
    }


def requests_of(row: FormalRow) -> list[str]:
    """What is asked, in order: each problem after its background, if it has one."""
    return [
        f"Background\n{background.strip()}\n\nProblem\n{question.strip()}"
        if background.strip()
        else question.strip()
        for question, background in zip(row.questions, row.backgrounds, strict=True)
    ]


def _subtasks(row: FormalRow, answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [
        {
            "question": question,
            "reference": reference,
            # What ends without a reply has only a notice, which no judge should take for an answer.
            "candidate": answer.message if answer.outcome == "replied" else "",
            "outcome": answer.outcome,
        }
        for question, reference, answer in zip(row.questions, row.answers, answers, strict=True)
    ]


def _tools() -> Toolbox:
    @tool(name="calculate", idempotent=True)
    def compute(expression: str) -> str:
        """Calculate or compare, such as 160 * 1.2 < 200."""
        return evaluate(expression)

    return Toolbox([compute])


def _row(rows: Mapping[str, FormalRow], task_id: str) -> FormalRow:
    if task_id not in rows:
        raise UsageError(f"there is no paper {task_id!r}")
    return rows[task_id]
