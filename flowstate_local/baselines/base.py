"""The seam of the evaluation: one Protocol that every method keeps, so that no harness can tell them apart."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from flowstate_local.completion import Sampling
from flowstate_local.engines.base import Engine
from flowstate_local.tools import Toolbox

Cause = Literal["step", "isu", "psa", "memory", "judge", "retry"]
"""What a model call was for: an act or reply of the request, a step that only wrote state (isu) or only opened some
(psa), the upkeep of a memory, a judge's verdict, or an output of which nothing was used and that was asked for again."""


@dataclass(frozen=True)
class Usage:
    """What one model call cost, and of what its prompt was made."""

    request: int
    """Number of the request in its episode, from 1."""
    step: int
    """Of the request, from 1."""
    segments: dict[str, int]
    """Prompt tokens by segment; their sum is the prompt."""
    cached_tokens: int
    generated_tokens: int
    total_s: float
    cause: Cause = "step"
    fault: str = ""
    """"cut_off", "empty" or "unparsable" if nothing of the output was used."""
    blocks: dict[str, int] = field(default_factory=dict)
    """Generated tokens by block of the output, about, where an output has blocks."""

    @property
    def prompt_tokens(self) -> int:
        """All of the prompt."""
        return sum(self.segments.values())


@dataclass(frozen=True)
class Answer:
    """How a request ended."""

    outcome: str
    """"replied", or why there's no reply: "step_budget", "no_progress", "failed", "overflow"."""
    message: str
    usage: tuple[Usage, ...]
    refused_operations: int = 0
    """Of deltas, by ISU."""
    refused_accesses: int = 0
    """By PSA, and calls that the deferral rule held back."""
    looks: int = 0
    """Things opened."""
    useless_looks: int = 0
    """Those of them that nothing written in the request refers to or cites."""


@dataclass(frozen=True)
class Budget:
    """The same for all methods of a comparison."""

    max_steps: int = 12
    """Of a request."""
    sampling: Sampling = Sampling()
    memory_tokens: int = 2_048
    """Of what a memory may put into a prompt, where it has a choice."""


@dataclass(frozen=True)
class Setting:
    """What a method is given for one episode: all methods of a comparison get the same."""

    engine: Engine
    """The model. The method does not close it."""
    toolbox: Toolbox
    budget: Budget = Budget()
    instructions: str = ""
    """Of the benchmark, such as a policy: part of the static prompt, after the method's own rules."""


class Method(Protocol):
    """An agent with its memory, at the beginning of one episode."""

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """Run one request to its end, and remember what this method remembers.

        Raises:
            EngineError: the engine failed; the episode can't be counted.
        """

    async def close(self) -> None:
        """Give back what the memory holds outside of Python (a folder, a connection). The last call."""


MethodFactory = Callable[[Setting], Method]
"""Makes a method with an empty memory."""
