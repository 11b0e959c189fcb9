"""Confidence intervals by bootstrap over tasks: tasks are what differs, trials of one task are averaged first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its interval."""

    mean: float
    low: float
    high: float
    n: int
    """Tasks."""


def interval(values: Sequence[float], *, seed: int = 0) -> Interval | None:
    """Mean over tasks with a percentile bootstrap; None without values."""
    if not values:
        return None
    sample = np.asarray(values, dtype=float)
    draws = np.random.default_rng(seed).integers(0, len(sample), (RESAMPLES, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(sample.mean()), float(low), float(high), len(sample))


def paired(ours: Mapping[str, float], theirs: Mapping[str, float], *, seed: int = 0) -> Interval | None:
    """Mean difference over the tasks that both played; the same draw of tasks for both (paired bootstrap)."""
    both = [task for task in ours if task in theirs]
    return interval([ours[task] - theirs[task] for task in both], seed=seed)
