"""The running score: a bar with the time left, and beside it how each method stands."""

import time
from collections import defaultdict
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from flowstate_local.bench.records import Record

QUIET_S = 15.0
"""Seconds between two lines where there's no terminal to draw on."""


class Score:
    """Shows a run while it is played.

    Args:
        metric: which score is shown.
        methods: in their order.
        total: episodes.
        console: where.
        quiet: show nothing.
    """

    def __init__(self, metric: str, methods: list[str], total: int, console: Console, *, quiet: bool) -> None:
        self._metric, self._methods, self._total = metric, methods, total
        self._scores: dict[str, list[float]] = defaultdict(list)
        self._tokens = self._cached = 0
        self._n = 0
        self._said_at = -QUIET_S
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._console, self._quiet = console, quiet

    def __enter__(self) -> "Score":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self) -> None:
        """The engine is ready."""
        self._bar = self._progress.add_task("episodes", total=self._total, completed=self._n)
        self._progress.start()
        self._show()

    def add(self, record: "Record") -> None:
        """One more is done."""
        self._n += 1
        self._scores[record.method].append(0.0 if record.error else record.scores.get(self._metric) or 0.0)
        for answer in record.answers:
            self._tokens += sum(usage.prompt_tokens for usage in answer.usage)
            self._cached += sum(usage.cached_tokens for usage in answer.usage)
        self._show()

    def _show(self) -> None:
        if not hasattr(self, "_bar"):
            return
        self._progress.update(self._bar, completed=self._n, description=self._words())
        enough = time.monotonic() - self._said_at >= QUIET_S or self._n == self._total
        if enough and not self._console.is_terminal and not self._quiet:
            self._said_at = time.monotonic()
            self._console.print(f"{self._n}/{self._total}  {self._words()}", soft_wrap=True)

    def _words(self) -> str:
        parts = [
            f"{method} {sum(scores):g}/{len(scores)}"
            for method in self._methods
            if (scores := self._scores.get(method))
        ]
        cached = f"cached {self._cached / self._tokens:.0%}" if self._tokens else ""
        return "  ".join([*parts, cached])
