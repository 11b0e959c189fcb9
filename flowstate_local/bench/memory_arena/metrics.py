"""What MemoryArena measures, as pure functions: means, the depth curve, and our own area under it."""

from collections.abc import Iterable, Mapping, Sequence

from flowstate_local.bench.suite import Figure

Scores = Mapping[str, float | None]
Trials = Mapping[str, Sequence[Scores | None]]
"""Task id -> the scores of each trial; None for a trial that failed."""

LEAST_TASKS = 5
"""The area stops before the first depth that fewer tasks than this reach."""


def at(k: int) -> str:
    """Name of the score of the k-th subtask, from 1."""
    return f"SR@{k}"


def by_depth(scores: Scores, depth: int) -> list[float | None]:
    """The scores of the subtasks, in order."""
    return [scores.get(at(k)) for k in range(1, depth + 1)]


def mean(values: Iterable[float | None]) -> tuple[float | None, int]:
    """The mean of what was measured, and of how many; (None, 0) of nothing."""
    known = [value for value in values if value is not None]
    return (sum(known) / len(known), len(known)) if known else (None, 0)


def depth_curve(
    outcomes: Sequence[Sequence[float | None]], *, cumulative: bool = False
) -> list[tuple[float | None, int]]:
    """At each depth k, the share of plays that are right there, and how many have that depth.

    Args:
        outcomes: for each play its subtasks in order: 1.0, 0.0, or None if it wasn't measured.
        cumulative: pool the depths 1 to k.
    """
    deepest = max(map(len, outcomes), default=0)
    levels = [[row[k] for row in outcomes if len(row) > k] for k in range(deepest)]
    if cumulative:
        levels = [[value for level in levels[: k + 1] for value in level] for k in range(deepest)]
    return [mean(level) for level in levels]


def nauc(curve: Sequence[float]) -> float | None:
    """Normalised area under the depth curve; our definition, as none is published.

    Trapezoids over k, with k scaled to [0, 1], so that a curve that stays at 1 has area 1. Of a single point it is
    that point; None of no curve.
    """
    if len(curve) < 2:
        return curve[0] if curve else None
    return sum((a + b) / 2 for a, b in zip(curve, curve[1:], strict=False)) / (len(curve) - 1)


def plays(trials: Trials, metric: str) -> list[float | None]:
    """A metric in every trial; a failed trial has 0."""
    return [0.0 if scores is None else scores.get(metric) for each in trials.values() for scores in each]


def mean_figure(trials: Trials, metric: str, name: str = "", note: str = "") -> Figure:
    """The mean of a metric over all trials."""
    values = plays(trials, metric)
    value, n = mean(values)
    unmeasured = f"{len(values) - n} of {len(values)} not measured" if n < len(values) else ""
    return Figure(name or metric, value, n, "; ".join(filter(None, (note, unmeasured))))


def outcomes(trials: Trials, depths: Mapping[str, int]) -> list[list[float | None]]:
    """The subtasks of every trial, for `depth_curve`; those of a failed trial are all wrong."""
    return [
        [0.0] * depths[task] if scores is None else by_depth(scores, depths[task])
        for task, each in trials.items()
        for scores in each
    ]


def depth_figures(trials: Trials, depths: Mapping[str, int]) -> list[Figure]:
    """The depth curve, plain and cumulative, and the area under the plain one."""
    rows = outcomes(trials, depths)
    curve = depth_curve(rows)
    figures = [Figure(at(k), value, n) for k, (value, n) in enumerate(curve, start=1)]
    figures += [
        Figure(f"SR@1..{k}", value, n, "positions pooled")
        for k, (value, n) in enumerate(depth_curve(rows, cumulative=True), start=1)
        if k > 1
    ]
    return [_area(trials, depths, [value for value, _ in curve]), *figures]


def _area(trials: Trials, depths: Mapping[str, int], curve: Sequence[float | None]) -> Figure:
    reach = [sum(depths[task] > k for task in trials) for k in range(len(curve))]
    kept: list[float] = []
    for value, tasks in zip(curve, reach, strict=True):
        if tasks < LEAST_TASKS or value is None:
            break
        kept.append(value)
    note = (
        f"our definition; depths 1..{len(kept)}, reached by {LEAST_TASKS} tasks or more"
        if kept
        else f"our definition; needs {LEAST_TASKS} tasks"
    )
    return Figure("nAUC", nauc(kept), len(trials) if kept else 0, note)
