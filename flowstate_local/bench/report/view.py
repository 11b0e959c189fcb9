"""What a report shows, as plain values: computed once, drawn as HTML and as Markdown."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from flowstate_local.bench.accounting import Account, Prices
from flowstate_local.bench.memory_arena.metrics import at
from flowstate_local.bench.methods import METHODS
from flowstate_local.bench.records import Record, RunConfig, read_config, read_records
from flowstate_local.bench.report import charts
from flowstate_local.bench.runner import Key
from flowstate_local.bench.statistics import interval
from flowstate_local.bench.suite import Suite
from flowstate_local.bench.suites import make_suite
from flowstate_local.bench.summary import Row, summarize
from flowstate_local.errors import UsageError

SEGMENTS = (
    "rules",
    "tools",
    "instructions",
    "frame",
    "index",
    "memory",
    "request",
    "state",
    "opened",
    "raw_buffer",
    "transcript",
    "observation",
)
"""In the order of the prompt. Others follow."""
N_COLUMNS = 5
"""Of the table of growth, beside the first request."""
CAUSES = ("step", "psa", "isu", "memory", "judge", "retry")


@dataclass(frozen=True)
class RunView:
    """One run, ready to be shown."""

    config: RunConfig
    metric: str
    rows: list[Row]
    tasks: int
    """Tasks of which there is at least one episode."""
    missing: int
    """Episodes of the plan, over these tasks, that were not played."""
    records: Mapping[Key, Record]
    colours: dict[str, int]
    """Method -> number of its colour."""
    published: list[dict[str, Any]]

    @property
    def title(self) -> str:
        """Suite and model."""
        if self.config.engine == "oracle":
            return f"{self.config.suite} with perfect decisions, scripted by its oracle"
        return f"{self.config.suite} on {self.config.model}"


def load_run(path: Path) -> RunView:
    """Read a run.

    Raises:
        UsageError: there is none, it is damaged, or nothing was played yet.
    """
    config, records = read_config(path), read_records(path)
    if not records:
        raise UsageError(f"{path}: no episode is done yet")
    suite = _suite_of(config)
    tasks = dict.fromkeys(task for task, _, _ in records)
    methods = [m for m in (*METHODS, *config.methods) if m in config.methods]
    methods = list(dict.fromkeys(methods))
    return RunView(
        config=config,
        metric=suite.primary,
        rows=summarize(suite, records, methods, config.trials),
        tasks=len(tasks),
        missing=len(tasks) * len(methods) * config.trials - len(records),
        records=records,
        colours={method: place % charts.N_COLOURS for place, method in enumerate(methods)},
        published=_published(config.suite),
    )


def _suite_of(config: RunConfig) -> Suite:
    return make_suite(config.suite, config.settings)


def _published(suite: str) -> list[dict[str, Any]]:
    text = (files("flowstate_local.bench") / "published.yaml").read_text()
    rows: list[dict[str, Any]] = (yaml.safe_load(text) or {}).get(suite, [])
    return rows


# --- tables ---------------------------------------------------------------------------------------------------


def main_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """Scores and costs."""
    head = [
        "method",
        run.metric,
        "95% interval",
        "flowstate minus it",
        "tokens an episode",
        "prompt",
        "cached",
    ]
    head += ["generated", "model calls", "engine seconds"]
    body = []
    for row in run.rows:
        cost = row.account
        body.append(
            [
                row.method,
                f"{row.score.mean:.3f}" if row.score else "–",
                f"{row.score.low:.2f} to {row.score.high:.2f}" if row.score else "–",
                signed(row),
                f"{cost.tokens_per_episode:,.0f}" if cost.tokens_per_episode else "–",
                f"{cost.prompt_tokens:,}",
                f"{cost.cached_share:.1%}" if cost.cached_share is not None else "–",
                f"{cost.generated_tokens:,}",
                f"{cost.calls:,}",
                f"{cost.engine_s:,.0f}",
            ]
        )
    return head, body


def signed(row: Row) -> str:
    """The paired difference with its interval."""
    if row.difference is None:
        return "–"
    d = row.difference
    return f"{d.mean:+.3f} ({d.low:+.2f} to {d.high:+.2f})"


def figures_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """The suite's own figures, a column a method."""
    names = list(dict.fromkeys(figure.name for row in run.rows for figure in row.figures))
    notes = {figure.name: figure.note for row in run.rows for figure in row.figures if figure.note}
    by_method = {row.method: {figure.name: figure for figure in row.figures} for row in run.rows}
    body = []
    for name in names:
        cells = []
        for row in run.rows:
            figure = by_method[row.method].get(name)
            cells.append("–" if figure is None or figure.value is None else f"{figure.value:.3f}")
        body.append([name, *cells, notes.get(name, "")])
    return ["figure", *(row.method for row in run.rows), "note"], body


def faults_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """What went wrong, and what was refused."""
    head = [
        "method",
        "errors",
        "cut off",
        "unparsable",
        "empty",
        "refused operations",
        "refused accesses",
        "opened",
    ]
    head += ["useless", "replied", "other ends"]
    body = []
    for row in run.rows:
        cost = row.account
        others = {name: n for name, n in cost.outcomes.items() if name != "replied"}
        body.append(
            [
                row.method,
                str(cost.failed),
                *(str(cost.faults[kind]) for kind in ("cut_off", "unparsable", "empty")),
                str(cost.refused_operations),
                str(cost.refused_accesses),
                str(cost.looks),
                f"{cost.useless_looks} ({cost.useless_looks / cost.looks:.0%})" if cost.looks else "0",
                str(cost.outcomes["replied"]),
                ", ".join(f"{n} {name}" for name, n in others.items()) or "–",
            ]
        )
    return head, body


def cost_table(run: RunView, prices: Prices | None) -> tuple[list[str], list[list[str]]] | None:
    """Cost by a price file; None without one."""
    if prices is None:
        return None
    body = []
    for row in run.rows:
        cost = row.account.cost(prices)
        rights = (row.score.mean if row.score else 0.0) * row.account.episodes
        body.append(
            [
                row.method,
                f"{cost:.4f}",
                f"{cost / row.account.episodes:.5f}",
                f"{cost / rights:.5f}" if rights else "–",
            ]
        )
    unit = prices.currency
    return ["method", f"{unit}", f"{unit} an episode", f"{unit} a right answer"], body


def segments_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """Prompt tokens by segment."""
    return _parts_table(run, SEGMENTS, lambda account: account.segments, "segment")


def growth_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """Mean prompt of a model call, at some requests of an episode."""
    last = max((max(row.account.by_request, default=1) for row in run.rows), default=1)
    shown = sorted({1, *(round(last * part / N_COLUMNS) for part in range(1, N_COLUMNS + 1))} - {0})
    body = []
    for row in run.rows:
        sizes = [row.account.prompt_per_call(number) for number in shown]
        body.append([row.method, *(f"{size:,.0f}" if size is not None else "–" for size in sizes)])
    return ["tokens a call in request", *map(str, shown)], body


def causes_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """All tokens by what the call was for."""
    return _parts_table(run, CAUSES, lambda account: account.causes, "cause")


def published_table(run: RunView) -> tuple[list[str], list[list[str]]] | None:
    """What others measured, on other models; None if there is nothing."""
    if not run.published:
        return None
    names = list(dict.fromkeys(name for row in run.published for name in row["figures"]))
    body = [
        [
            row["method"],
            row["model"],
            *(f"{row['figures'][n]:,g}" if n in row["figures"] else "–" for n in names),
            row["source"],
        ]
        for row in run.published
    ]
    return ["method", "measured on", *names, "source"], body


def tasks_table(run: RunView) -> tuple[list[str], list[list[str]]]:
    """Every task with the score of each method, mean over its trials."""
    methods = [row.method for row in run.rows]
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (task, method, _), record in run.records.items():
        value = 0.0 if record.error else record.scores.get(run.metric)
        if value is not None:
            scores[task][method].append(value)
    body = []
    for task, by in scores.items():
        body.append([task, *(f"{sum(by[m]) / len(by[m]):.2g}" if by.get(m) else "–" for m in methods)])
    return ["task", *methods], body


def _parts_table(run: RunView, order: Sequence[str], of: Any, what: str) -> tuple[list[str], list[list[str]]]:
    parts = _present(run, order, of)
    body = []
    for row in run.rows:
        counted = of(row.account)
        total = sum(counted.values())
        cells = [f"{counted[p]:,} ({counted[p] / total:.0%})" if counted[p] else "–" for p in parts]
        body.append([row.method, *cells])
    return [what, *parts], body


def _present(run: RunView, order: Sequence[str], of: Any) -> list[str]:
    seen = {part for row in run.rows for part, n in of(row.account).items() if n}
    return [part for part in order if part in seen] + sorted(seen - set(order))


# --- charts ---------------------------------------------------------------------------------------------------


def chart_prompt(run: RunView) -> str:
    """Mean prompt of a model call against the number of the request."""

    def points(account: Account) -> list[tuple[float, float]]:
        numbers = sorted(account.by_request)
        return [(number, account.prompt_per_call(number) or 0.0) for number in numbers]

    return charts.line_chart(_lines(run, points), x="request of the episode", y="prompt tokens a call")


def chart_cumulative(run: RunView) -> str:
    """Mean tokens of an episode so far."""

    def points(account: Account) -> list[tuple[float, float]]:
        return [(float(place), value) for place, value in enumerate(account.cumulative(), start=1)]

    return charts.line_chart(_lines(run, points), x="request of the episode", y="tokens so far")


def chart_segments(run: RunView) -> str:
    """Prompt tokens by segment, a bar a method."""
    return _bars(run, SEGMENTS, lambda account: account.segments, "prompt tokens")


def chart_causes(run: RunView) -> str:
    """All tokens by cause, a bar a method."""
    return _bars(run, CAUSES, lambda account: account.causes, "tokens")


def chart_depth(runs: Sequence[RunView]) -> str:
    """Score against depth: the number of a scored request, or the length of the episode where only its end is scored."""
    points: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for (_, method, _), record in run.records.items():
            for depth, value in _depths(record, run.metric):
                points[method][depth].append(value)
    if not any(len(by) > 1 for by in points.values()):
        return ""
    lines = []
    for method, by in points.items():
        at = {depth: interval(values) for depth, values in sorted(by.items())}
        shown = [(float(depth), one) for depth, one in at.items() if one is not None]
        colour = next(run.colours[method] for run in runs if method in run.colours)
        lines.append(
            charts.Line(
                method,
                [(depth, one.mean) for depth, one in shown],
                colour,
                [(depth, one.low, one.high) for depth, one in shown] if len(points) <= 4 else (),
            )
        )
    return charts.line_chart(lines, x="requests", y="score", top=1.0)


def _depths(record: Record, metric: str) -> list[tuple[int, float]]:
    places = range(1, len(record.answers) + 1)
    by_request = [(place, value) for place in places if (value := record.scores.get(at(place))) is not None]
    if by_request:
        return by_request
    value = 0.0 if record.error else record.scores.get(metric)
    return [(len(record.answers), value)] if value is not None and record.answers else []


def _lines(run: RunView, points: Any) -> list[charts.Line]:
    return [charts.Line(row.method, points(row.account), run.colours[row.method]) for row in run.rows]


def _bars(run: RunView, order: Sequence[str], of: Any, unit: str) -> str:
    parts = _present(run, order, of)
    colours = {part: place % charts.N_COLOURS for place, part in enumerate(parts)}
    rows = {row.method: {part: float(of(row.account)[part]) for part in parts} for row in run.rows}
    return charts.stacked_bars(rows, colours, unit=unit)


def legend(run: RunView, what: str) -> list[tuple[str, int]]:
    """Names and colours of the parts of a bar chart."""
    order, of = (SEGMENTS, lambda a: a.segments) if what == "segments" else (CAUSES, lambda a: a.causes)
    return [(part, place % charts.N_COLOURS) for place, part in enumerate(_present(run, order, of))]
