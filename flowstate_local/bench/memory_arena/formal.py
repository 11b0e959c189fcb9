"""Formal reasoning, mathematics and physics: questions of one paper in order, judged for equivalence."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.memory_arena.judge import Judge, Parse
from flowstate_local.bench.memory_arena.rows import Config, FormalRow, load
from flowstate_local.bench.suite import Figure, Played, Seat
from flowstate_local.calculator import evaluate
from flowstate_local.tools import Toolbox, tool

INSTRUCTIONS = """You work through the questions of one paper in order. Later questions use what earlier ones and their backgrounds define.
Reply with the answer alone.
"""
NO_BACKGROUND = "No information provided."


class FormalSettings(BaseModel):
    """What may be set of formal reasoning."""

    model_config = ConfigDict(extra="forbid")

    folder: str = "memoryarena"
    judge_url: str = ""
    """Without one, `flowstate bench judge` can ask later."""
    judge_model: str = ""
    judge_sees_question: bool = False
    """Off is official."""
    judge_parse: Parse = "substring"
    """How the judge's words are read; substring is official."""


class Formal:
    """See `suite.Suite`."""

    primary = "PS"

    def __init__(self, subject: Literal["math", "physics"], settings: FormalSettings) -> None:
        self.name = f"memory_arena_{subject}"
        self.settings: Mapping[str, Any] = settings.model_dump()
        config: Config = "formal_reasoning_math" if subject == "math" else "formal_reasoning_phys"
        rows, self._warning = load(Path(settings.folder), config, FormalRow)
        self._rows = {str(row.id): row for row in rows}
        self._judge = (
            Judge(
                settings.judge_url,
                settings.judge_model,
                os.environ.get("FLOWSTATE_BENCH_API_KEY", "EMPTY"),
                settings.judge_sees_question,
                settings.judge_parse,
            )
            if settings.judge_url
            else None
        )

    def task_ids(self) -> Sequence[str]:
        """See `Suite.task_ids`."""
        return list(self._rows)

    async def play(self, task_id: str, seat: Seat, *, seed: int) -> Played:
        """See `Suite.play`. The judge is asked at the end, if there is one."""
        row = self._rows[task_id]
        method = seat(_tools(), INSTRUCTIONS)
        answers: list[Answer] = []
        for question, background in zip(row.questions, row.backgrounds, strict=True):
            answers.append(
                await method.ask(f"Background\n{background or NO_BACKGROUND}\n\nProblem\n{question}")
            )
        detail: dict[str, Any] = {"said": [answer.message for answer in answers]}
        scores: Mapping[str, float | None] = {"PS": None, "SR": None}
        scores, judged = await self.second_pass(task_id, scores, detail)
        return Played(scores=scores, answers=tuple(answers), detail=dict(judged))

    async def second_pass(
        self, task_id: str, scores: Mapping[str, float | None], detail: Mapping[str, Any]
    ) -> tuple[Mapping[str, float | None], Mapping[str, Any]]:
        """Scores and detail with the judge's verdicts; unchanged without a judge.

        Raises:
            EngineError: the judge can't be reached.
        """
        if self._judge is None:
            return scores, detail
        row = self._rows[task_id]
        verdicts: list[bool | None] = []
        for question, said, right in zip(row.questions, detail["said"], row.answers, strict=True):
            verdicts.append(await self._judge.same(question, said, right))
        # A judge that says neither yes nor no has not found it right; how often that was is told.
        shares = [float(bool(verdict)) for verdict in verdicts]
        judged = {"scores_by_request": shares, "unclear": verdicts.count(None), "judge": self._judge.model}
        return {"PS": sum(shares) / len(shares), "SR": shares[-1]}, {**detail, **judged}

    def figures(self, played: Mapping[str, Sequence[Mapping[str, float | None] | None]]) -> list[Figure]:
        """See `Suite.figures`."""
        trials = [one for ones in played.values() for one in ones]
        unjudged = sum(one is not None and one.get("PS") is None for one in trials)
        said = f"judge: {self._judge.model}" if self._judge else "no judge"
        notes = [self._warning, said, f"{unjudged} not judged, counted as wrong" if unjudged else ""]
        note = "; ".join(one for one in notes if one)
        every = [one or {} for one in trials]
        return [
            Figure("PS", _mean([float(one.get("PS") or 0.0) for one in every]), len(every), note),
            Figure(
                "SR",
                _mean([float(one.get("SR") or 0.0) for one in every]),
                len(every),
                "the last question is right",
            ),
        ]


def _tools() -> Toolbox:
    @tool(name="calculate", idempotent=True)
    def calculate(expression: str) -> str:
        """Calculate or compare, such as 160 + 80 < 200."""
        return evaluate(expression)

    return Toolbox([calculate])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
