"""The table at the end of a run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from flowstate_local.bench.records import Record
    from flowstate_local.bench.statistics import Interval
    from flowstate_local.bench.suite import Suite


def summary_table(suite: "Suite", records: Mapping[Any, "Record"], methods: list[str], trials: int) -> Table:
    """Scores and costs, a line a method."""
    from flowstate_local.bench.summary import REFERENCE, summarize

    table = Table(box=None, padding=(0, 2))
    table.add_column("method", style="bold")
    names = (
        suite.primary,
        "95%",
        f"{REFERENCE} minus it",
        "prompt",
        "cached",
        "generated",
        "calls",
        "faults",
    )
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in summarize(suite, records, methods, trials):
        cost = row.account
        cached = f"{cost.cached_share:.0%}" if cost.cached_share is not None else ""
        table.add_row(
            row.method,
            f"{row.score.mean:.3f}" if row.score else "",
            f"{row.score.low:.2f}..{row.score.high:.2f}" if row.score else "",
            _signed(row.difference),
            f"{cost.prompt_tokens:,}",
            cached,
            f"{cost.generated_tokens:,}",
            f"{cost.calls:,}",
            str(sum(cost.faults.values()) + cost.failed),
        )
    return table


def wide_console() -> Console:
    """Stdout, wide enough for the table where it is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=max(console.width, 140))


def _signed(difference: "Interval | None") -> str:
    if difference is None:
        return ""
    return f"{difference.mean:+.2f} ({difference.low:+.2f}..{difference.high:+.2f})"
