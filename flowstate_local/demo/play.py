"""Play one variant of the story with any engine and store, and account for every token."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from flowstate_local.demo.desk import Desk, Trip, tools_of
from flowstate_local.demo.story import Ask, Verdict, judge, requests_of
from flowstate_local.engines.base import Engine
from flowstate_local.loop import Agent, RequestResult, StepTrace
from flowstate_local.nodes import RequestId
from flowstate_local.stores.base import Store


@dataclass
class Audit:
    """Where the tokens went, over all steps of a play."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    later_prompt_tokens: int = 0
    """Prompt tokens of steps 2.. of each request: those whose prefix a cache can hold."""
    later_cached_tokens: int = 0
    segments: dict[str, int] = field(default_factory=dict)
    """Prompt tokens by segment."""
    unparsable: int = 0
    cut_off: int = 0
    refused: int = 0
    model_s: float = 0.0

    def count(self, trace: StepTrace) -> None:
        """Add one step."""
        completion = trace.completion
        self.steps += 1
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        self.generated_tokens += completion.generated_tokens
        self.model_s += completion.total_s
        if trace.step > 1:
            self.later_prompt_tokens += completion.prompt_tokens
            self.later_cached_tokens += completion.cached_tokens
        for name, size in trace.prompt.segments.items():
            self.segments[name] = self.segments.get(name, 0) + size
        self.cut_off += completion.finish_reason == "length"
        self.unparsable += completion.finish_reason == "stop" and trace.output is None
        self.refused += sum(len(getattr(event, "refused", ())) for event in trace.events)

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens of steps 2.. that the prefix cache served, 0 to 1."""
        return self.later_cached_tokens / self.later_prompt_tokens if self.later_prompt_tokens else 0.0

    def add(self, other: "Audit") -> None:
        """Add the sums of another play."""
        for name, value in asdict(other).items():
            if name != "segments":
                setattr(self, name, getattr(self, name) + value)
        for name, size in other.segments.items():
            self.segments[name] = self.segments.get(name, 0) + size


@dataclass
class Play:
    """One variant, played to its end."""

    trip: Trip
    space: str
    verdict: Verdict
    audit: Audit
    results: list[RequestResult]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "space": self.space,
            "trip": asdict(self.trip),
            "verdict": asdict(self.verdict),
            "audit": asdict(self.audit) | {"cached_share": round(self.audit.cached_share, 4)},
            "replies": [result.message for result in self.results],
        }


async def play(
    engine: Engine,
    store: Store,
    trip: Trip,
    *,
    space: str,
    on_request: Callable[[int, Ask], None] | None = None,
    on_step: Callable[[StepTrace], None] | None = None,
    **agent_options: Any,
) -> Play:
    """Run the six requests of `trip` in a fresh space and judge the last.

    Raises:
        StoreBusy: the space has an unfinished request.
        EngineError: the engine failed; what was done so far is in the space.
    """
    desk, audit = Desk(trip), Audit()

    def watch(trace: StepTrace) -> None:
        audit.count(trace)
        if on_step is not None:
            on_step(trace)

    agent = Agent(engine, store, tools_of(desk), on_step=watch, **agent_options)
    results = []
    asks = requests_of(trip)
    for number, ask in enumerate(asks, start=1):
        desk.offer_open = number == len(asks)
        if on_request is not None:
            on_request(number, ask)
        results.append(await agent.run(ask.text, space=space, date=ask.date))
    last = RequestId(f"r{store.head(space).requests}")
    events = [event for event in store.events(space) if event.request == last]
    return Play(trip, space, judge(desk, events, store.reader(space)), audit, results)
