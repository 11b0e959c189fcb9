"""Where the tokens go: every model call of every method, by segment of the prompt and by what it was for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowstate_local.baselines.base import Usage
from flowstate_local.bench.records import Record
from flowstate_local.errors import UsageError


class Prices(BaseModel):
    """What tokens or machine time cost, in one currency. A file of these is the only source of cost figures."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    currency: str = "USD"
    prompt: float = Field(0.0, ge=0)
    """Per million prompt tokens that are computed."""
    cached: float = Field(0.0, ge=0)
    """Per million prompt tokens from the prefix cache."""
    generated: float = Field(0.0, ge=0)
    """Per million generated tokens."""
    engine_hour: float = Field(0.0, ge=0)
    """Per hour in which the engine works, all its GPUs together."""


@dataclass
class Account:
    """What one method cost over the episodes of a run."""

    method: str
    episodes: int = 0
    failed: int = 0
    """Episodes that ended with an error."""
    requests: int = 0
    calls: int = 0
    """Of the model."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    engine_s: float = 0.0
    segments: Counter[str] = field(default_factory=Counter)
    """Prompt tokens by segment."""
    causes: Counter[str] = field(default_factory=Counter)
    """Prompt and generated tokens by what the call was for."""
    blocks: Counter[str] = field(default_factory=Counter)
    """Generated tokens by block, where outputs have blocks."""
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    refused_operations: int = 0
    refused_accesses: int = 0
    looks: int = 0
    useless_looks: int = 0
    by_request: dict[int, Counter[str]] = field(default_factory=dict)
    """Number of the request in its episode -> calls, prompt, cached and generated tokens, over all episodes."""

    @property
    def cached_share(self) -> float | None:
        """Of the prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def tokens_per_episode(self) -> float | None:
        """Prompt and generated."""
        return (self.prompt_tokens + self.generated_tokens) / self.episodes if self.episodes else None

    def prompt_per_call(self, request: int) -> float | None:
        """Mean prompt of the model calls in requests of that number."""
        row = self.by_request.get(request)
        return row["prompt"] / row["calls"] if row else None

    def cumulative(self) -> list[float]:
        """Mean tokens of an episode up to and including request 1, 2, ..."""
        total, sums = 0, []
        for number in sorted(self.by_request):
            total += self.by_request[number]["prompt"] + self.by_request[number]["generated"]
            sums.append(total / self.episodes)
        return sums

    def cost(self, prices: Prices) -> float:
        """In the currency of the prices."""
        computed = self.prompt_tokens - self.cached_tokens
        tokens = computed * prices.prompt + self.cached_tokens * prices.cached
        tokens += self.generated_tokens * prices.generated
        return tokens / 1e6 + self.engine_s / 3600 * prices.engine_hour

    def add(self, record: Record) -> None:
        """Take in one episode."""
        self.episodes += 1
        self.failed += bool(record.error)
        self.engine_s += record.engine_s
        for answer in record.answers:
            self.requests += 1
            self.outcomes[answer.outcome] += 1
            self.refused_operations += answer.refused_operations
            self.refused_accesses += answer.refused_accesses
            self.looks += answer.looks
            self.useless_looks += answer.useless_looks
            for usage in answer.usage:
                self._call(usage)

    def _call(self, usage: Usage) -> None:
        self.calls += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.generated_tokens += usage.generated_tokens
        self.segments.update(usage.segments)
        self.blocks.update(usage.blocks)
        self.causes[usage.cause] += usage.prompt_tokens + usage.generated_tokens
        if usage.fault:
            self.faults[usage.fault] += 1
        row = self.by_request.setdefault(usage.request, Counter())
        row.update(
            calls=1,
            prompt=usage.prompt_tokens,
            cached=usage.cached_tokens,
            generated=usage.generated_tokens,
        )


def accounts(records: Iterable[Record]) -> dict[str, Account]:
    """One account a method, in the order in which they appear."""
    table: dict[str, Account] = {}
    for record in records:
        table.setdefault(record.method, Account(record.method)).add(record)
    return table


def mean_scores(records: Mapping[tuple[str, str, int], Record], method: str, metric: str) -> dict[str, float]:
    """Task -> mean of a metric over its trials; an error counts as 0, what wasn't measured is left out."""
    found: dict[str, list[float]] = {}
    for (task, by, _), record in records.items():
        value = 0.0 if record.error else record.scores.get(metric)
        if by == method and value is not None:
            found.setdefault(task, []).append(value)
    return {task: sum(values) / len(values) for task, values in found.items()}


def load_prices(path: Path) -> Prices:
    """Read a price file (YAML).

    Raises:
        UsageError: it isn't there or isn't one.
    """
    try:
        return Prices.model_validate(yaml.safe_load(path.read_text()) or {})
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValidationError) as error:
        known = ", ".join(Prices.model_fields)
        raise UsageError(
            f"{path} is no price file: {str(error).splitlines()[0]}", hint=f"It may hold {known}."
        ) from None
