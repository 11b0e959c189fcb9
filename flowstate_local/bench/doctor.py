"""What the benchmarks need from outside."""

from pathlib import Path

from flowstate_local.bench.memory_arena.formal import FormalSettings
from flowstate_local.bench.memory_arena.rows import HASHES
from flowstate_local.bench.memory_arena.travel import TravelSettings
from flowstate_local.bench.memory_arena.travel_tools import FILES, HINT
from flowstate_local.bench.tau3 import doctor as tau3
from flowstate_local.doctor import Check


def examine() -> list[Check]:
    """Look at all of it; runs nothing, writes nothing."""
    return [Check("dependence", "ok", "needs nothing"), *tau3.examine(), *_memory_arena()]


def _memory_arena() -> list[Check]:
    """The official files and the tables, in the folders where they are looked for unless --set says otherwise."""
    folder, tables = Path(FormalSettings().folder), Path(TravelSettings().tables)
    checks = []
    for config in HASHES:
        there = any(p.is_file() for p in (folder / config / "data.jsonl", folder / f"{config}.jsonl"))
        remedy = (
            f"hf download ZexueHe/memoryarena --repo-type dataset --local-dir {folder}; or --set folder=DIR"
        )
        found = f"in {folder}" if there else f"not in {folder}"
        checks.append(
            Check(f"memory_arena {config}", "ok" if there else "warn", found, "" if there else remedy)
        )
    missing = [name for name in FILES.values() if not (tables / name).is_file()]
    found = f"{missing[0]} is not in {tables}" if missing else f"in {tables}"
    checks.append(Check("memory_arena tables", "warn" if missing else "ok", found, HINT if missing else ""))
    return checks
