"""Curves over depth: how many are right at the k-th subtask. `nauc` is this project's own figure, not MemoryArena's."""

from collections.abc import Sequence

FEWEST = 5
"""Tasks that must reach a depth for it to count."""


def pass_at(scores: Sequence[Sequence[float | None]]) -> list[tuple[int, float, int]]:
    """Depth k from 1, share right among the tasks that have a k-th subtask, and how many those are.

    A subtask without a verdict counts as wrong.
    """
    deepest = max((len(one) for one in scores), default=0)
    curve = []
    for k in range(deepest):
        at = [one[k] or 0.0 for one in scores if len(one) > k]
        curve.append((k + 1, sum(at) / len(at), len(at)))
    return curve


def nauc(scores: Sequence[Sequence[float | None]], *, fewest: int = FEWEST) -> float | None:
    """Area under pass@k by the trapezoid rule, k scaled to 0..1, ours; None with fewer than two depths.

    Depths that fewer than `fewest` tasks reach are left out.
    """
    points = [share for _, share, n in pass_at(scores) if n >= fewest]
    if len(points) < 2:
        return None
    areas = [(a + b) / 2 for a, b in zip(points, points[1:], strict=False)]
    return sum(areas) / len(areas)
