"""What a run came to, method by method: scores with their intervals, and what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flowstate_local.bench.accounting import Account, accounts, mean_scores
from flowstate_local.bench.records import Record
from flowstate_local.bench.runner import Key, scores_by_task
from flowstate_local.bench.statistics import Interval, interval, paired
from flowstate_local.bench.suite import Figure, Suite

REFERENCE = "flowstate"
"""The method that the others are compared with, where it was played."""


@dataclass(frozen=True)
class Row:
    """One method in a table."""

    method: str
    score: Interval | None
    """Of the suite's primary metric."""
    difference: Interval | None
    """REFERENCE minus this method on the same tasks; None for itself."""
    account: Account
    figures: tuple[Figure, ...]


def summarize(suite: Suite, records: Mapping[Key, Record], methods: Sequence[str], trials: int) -> list[Row]:
    """One row a method that was played, in the order given."""
    costs = accounts(records.values())
    scores = {method: mean_scores(records, method, suite.primary) for method in methods}
    reference = scores.get(REFERENCE, {})
    return [
        Row(
            method=method,
            score=interval(list(scores[method].values())),
            difference=paired(reference, scores[method]) if reference and method != REFERENCE else None,
            account=costs[method],
            figures=tuple(suite.figures(scores_by_task(records, method, trials))),
        )
        for method in methods
        if method in costs
    ]


def figures_json(
    suite: Suite, records: Mapping[Key, Record], methods: Sequence[str], trials: int
) -> dict[str, Any]:
    """The line that a benchmark ends with: name and figures, each with its peer where there is one."""
    rows = summarize(suite, records, methods, trials)
    ours = next((row.account.prompt_tokens for row in rows if row.method == REFERENCE), None)
    figures: dict[str, Any] = {}
    for row in rows:
        name, account = row.method, row.account
        if row.score is not None:
            figures[f"{name}.{suite.primary}"] = {"value": round(row.score.mean, 4), "unit": "share"}
        prompt: dict[str, Any] = {"value": account.prompt_tokens, "unit": "tokens"}
        if ours is not None and name != REFERENCE and account.prompt_tokens:
            prompt |= {"peer": ours, "ratio": round(account.prompt_tokens / ours, 3)}
        figures[f"{name}.prompt_tokens"] = prompt
        figures[f"{name}.cached_tokens"] = {"value": account.cached_tokens, "unit": "tokens"}
        figures[f"{name}.generated_tokens"] = {"value": account.generated_tokens, "unit": "tokens"}
        figures[f"{name}.failed"] = {"value": account.failed, "unit": "episodes"}
    return {"name": f"bench {suite.name}", "figures": figures}
