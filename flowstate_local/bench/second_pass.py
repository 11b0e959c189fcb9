"""Judging later: what a judge has to say about episodes that were played without one, or with another."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from flowstate_local.bench.records import Record, RunConfig, read_config, read_records, rewriting
from flowstate_local.bench.suites import make_suite
from flowstate_local.errors import UsageError


@runtime_checkable
class Judged(Protocol):
    """A suite whose scores may need a judge."""

    async def second_pass(
        self,
        task_id: str,
        scores: Mapping[str, float | None],
        detail: Mapping[str, Any],
        *,
        again: bool = False,
    ) -> tuple[Mapping[str, float | None], Mapping[str, Any]]:
        """Scores and detail with the judge's verdicts; `again` judges anew what has one."""


async def judge(path: Path, settings: Mapping[str, Any], *, again: bool = False) -> AsyncIterator[Record]:
    """Ask the judge about the episodes of a run; each that changed, as it is kept.

    Args:
        path: folder of the run.
        settings: of the suite, that say who judges.
        again: also those that were judged already.

    Raises:
        UsageError: there is no run, or its suite knows no judge.
        EngineError: the judge can't be reached; what it has said is kept.
    """
    config = read_config(path)
    suite = make_suite(config.suite, config.settings | dict(settings))
    if not isinstance(suite, Judged):
        raise UsageError(f"{config.suite} needs no judge")
    changed = RunConfig.model_validate(config.model_dump() | {"settings": dict(suite.settings)})
    with rewriting(path, changed) as folder:
        for record in read_records(path).values():
            if record.error or (not again and None not in record.scores.values()):
                continue
            scores, detail = await suite.second_pass(record.task, record.scores, record.detail, again=again)
            judged = record.model_copy(update={"scores": dict(scores), "detail": dict(detail)})
            if judged != record:
                folder.amend(judged)
                yield judged
