"""What the benchmarks need from outside."""

from collections.abc import Callable
from pathlib import Path

from flowstate_local.bench.memory_arena import load
from flowstate_local.bench.memory_arena.tables import Tables
from flowstate_local.bench.suites import FormalSettings, TravelSettings
from flowstate_local.bench.tau3 import doctor as tau3
from flowstate_local.doctor import Check
from flowstate_local.errors import UsageError


def examine() -> list[Check]:
    """Look at all of it; runs nothing, writes nothing."""
    return [Check("dependence", "ok", "needs nothing"), *tau3.examine(), *_memory_arena()]


def _memory_arena() -> list[Check]:
    """The files in the folders where they are looked for unless --set says otherwise."""
    folder, tables = Path(FormalSettings().folder), Path(TravelSettings().tables)
    looks: dict[str, Callable[[], tuple[str, ...]]] = {
        "travel": lambda: load.travel_rows(folder).remarks,
        "math": lambda: load.formal_rows(folder, "math").remarks,
        "phys": lambda: load.formal_rows(folder, "phys").remarks,
        "shopping": lambda: load.shopping_rows(folder).remarks,
        "tables": lambda: _readable(tables),
    }
    return [_look(f"memory_arena {name}", look) for name, look in looks.items()]


def _readable(tables: Path) -> tuple[str, ...]:
    Tables.open(tables)
    return ()


def _look(name: str, look: Callable[[], tuple[str, ...]]) -> Check:
    try:
        remarks = look()
    except UsageError as error:
        return Check(name, "warn", str(error), f"{error.hint} Or name another place with --set.")
    return Check(name, "warn" if remarks else "ok", "; ".join(remarks) or "there, and as published")
