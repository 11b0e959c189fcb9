"""What the benchmarks need from outside."""

from flowstate_local.bench.tau3 import doctor as tau3
from flowstate_local.doctor import Check


def examine() -> list[Check]:
    """Look at all of it; runs nothing, writes nothing."""
    return [Check("dependence", "ok", "needs nothing"), *tau3.examine()]
