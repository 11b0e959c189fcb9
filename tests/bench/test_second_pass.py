"""Judging later: what has no score is judged, the rest only if asked for, and each verdict is kept when it is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flowstate_local.bench import second_pass
from flowstate_local.bench.records import Record, RunConfig, read_config, read_records, writing
from flowstate_local.errors import EngineUnavailable

pytestmark = pytest.mark.anyio

CONFIG = RunConfig(
    suite="judged",
    settings={},
    methods=("m",),
    trials=1,
    seed=0,
    model="x",
    engine="server",
    profile="guidance",
    window=8_192,
    max_steps=9,
    max_tokens=700,
    memory_tokens=9,
    temperature=0.1,
    top_p=1.0,
    version="0",
)


class Judged:
    settings: Mapping[str, Any] = {"judge_model": "j"}

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.away_at = ""

    async def second_pass(self, task_id: str, scores: Any, detail: Any, *, again: bool = False) -> Any:
        if task_id == self.away_at:
            raise EngineUnavailable("the judge is away")
        self.asked.append((task_id, again))
        return {"PS": 1.0}, {**detail, "judge": "j"}


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    with writing(tmp_path, CONFIG) as folder:
        for task, score, error in (
            ("a", None, ""),
            ("b", 0.5, ""),
            ("c", None, "it failed"),
            ("d", None, ""),
        ):
            record = Record(
                task=task,
                method="m",
                trial=0,
                started_at=0,
                wall_s=1,
                engine_s=1,
                scores={"PS": score},
                error=error,
            )
            folder.write(record, {"task": task, "method": "m", "trial": 0, "calls": []})
    made = Judged()
    monkeypatch.setattr(second_pass, "make_suite", lambda name, settings: made)
    return made


async def judged(path: Path, **options: Any) -> list[str]:
    return [record.task async for record in second_pass.judge(path, {}, **options)]


async def test_only_what_has_no_score_is_judged_unless_again(suite: Judged, tmp_path: Path) -> None:
    assert await judged(tmp_path) == ["a", "d"]
    assert suite.asked == [("a", False), ("d", False)]
    scores = {key[0]: record.scores["PS"] for key, record in read_records(tmp_path).items()}
    assert scores == {"a": 1.0, "b": 0.5, "c": None, "d": 1.0}
    assert read_config(tmp_path).settings == {"judge_model": "j"}
    assert await judged(tmp_path) == []
    suite.asked.clear()
    assert await judged(tmp_path, again=True) == ["b"], "what comes out the same is not written again"
    assert suite.asked == [("a", True), ("b", True), ("d", True)]


async def test_a_judge_that_goes_away_in_the_middle_loses_nothing(suite: Judged, tmp_path: Path) -> None:
    suite.away_at = "d"
    with pytest.raises(EngineUnavailable):
        await judged(tmp_path)
    assert read_records(tmp_path)["a", "m", 0].scores == {"PS": 1.0}
    suite.away_at = ""
    assert await judged(tmp_path) == ["d"]
