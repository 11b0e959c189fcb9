"""Prometheus metrics of a server. No label names a tenant or a space: who may read metrics need not know them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from flowstate_local.completion import Sampling
from flowstate_local.events import DeltaCommitted, Disclosed, Event, ToolFinished
from flowstate_local.loop import RequestResult, StepTrace
from flowstate_local.server.observe import HttpRequest, Observer, TurnWatch, overhead_s

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Bounds of buckets, in seconds, of what this server does by itself."""
SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Of what waits for a model."""
EXTERNAL = "external"
"""Stands for all tools of clients: their names are the clients' to choose, and would have no end."""


class Metrics(Observer):
    """The metrics of one server, in a registry of their own.

    Args:
        own_tools: names of the tools that the server runs.
    """

    def __init__(self, own_tools: Sequence[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._own_tools = frozenset(own_tools)
        self._steps = self._counter("steps", "Steps, by what became of the output.", "outcome")
        self._tokens = self._counter("tokens", "Tokens, prompt ones with those cached.", "kind")
        self._turns = self._counter("turns", "Turns, by how they ended.", "outcome")
        self._refusals = self._counter("refusals", "What ISU or PSA refused.", "by", "rule")
        self._faults = self._counter("faults", "Outputs of which nothing was committed.", "kind")
        self._calls = self._counter("tool_calls", "Tool calls that ended.", "tool", "failure")
        self._rejected = self._counter("rejected", "Turns turned away.", "code")
        self._requests = self._counter("http_requests", "Requests of HTTP.", "route", "method", "status")
        self._turn_s = self._histogram("turn_seconds", "Turns, waiting for a place included.", SLOW)
        self._engine_s = self._histogram("step_engine_seconds", "Steps: in the engine.", SLOW)
        self._ttft_s = self._histogram("ttft_seconds", "Steps: to the first token.", SLOW)
        self._overhead_s = self._histogram("step_overhead_seconds", "Steps: neither engine nor tools.", FAST)
        self._grammar_s = self._histogram("grammar_compile_seconds", "Steps: making the grammar.", FAST)
        self._store_s = self._histogram("store_seconds", "Commits, with their sync.", FAST, "operation")

    def gauge(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when somebody asks."""
        Gauge(f"flowstate_{name}", help, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        """All of them as Prometheus reads them (`CONTENT_TYPE`)."""
        return generate_latest(self.registry)

    # --- what is told -------------------------------------------------------------------------------------

    @contextmanager
    def http(self, request: HttpRequest) -> Iterator[None]:
        """See `Observer`."""
        try:
            yield
        finally:
            self._requests.labels(request.route, request.method, str(request.status)).inc()

    @contextmanager
    def turn(self, space: str, model: str, sampling: Sampling) -> Iterator[TurnWatch]:
        """See `Observer`."""
        watch, begun = _Turn(self), perf_counter()
        try:
            yield watch
        finally:
            self._turns.labels(watch.outcome).inc()
            self._turn_s.observe(perf_counter() - begun)

    def rejected(self, code: str) -> None:
        """See `Observer`."""
        self._rejected.labels(code).inc()

    def store(self, operation: str, seconds: float) -> None:
        """See `Observer`."""
        self._store_s.labels(operation).observe(seconds)

    def step(self, trace: StepTrace) -> None:
        """Count a step."""
        completion = trace.completion
        self._steps.labels("used" if trace.output is not None else "fault").inc()
        self._tokens.labels("prompt").inc(completion.prompt_tokens)
        self._tokens.labels("cached").inc(completion.cached_tokens)
        self._tokens.labels("generated").inc(completion.generated_tokens)
        self._engine_s.observe(trace.engine_s)
        self._ttft_s.observe(completion.ttft_s)
        self._grammar_s.observe(trace.grammar_s)
        self._overhead_s.observe(overhead_s(trace))

    def events(self, events: Sequence[Event]) -> None:
        """Count what events say."""
        for event in events:
            if isinstance(event, DeltaCommitted | Disclosed):
                by = "isu" if isinstance(event, DeltaCommitted) else "psa"
                for refusal in event.refused:
                    self._refusals.labels(by, refusal.rule).inc()
            elif isinstance(event, ToolFinished):
                tool = event.name if event.name in self._own_tools else EXTERNAL
                self._calls.labels(tool, _failure(event)).inc()
            elif event.kind == "ModelReplied" and event.fault:
                self._faults.labels(event.fault).inc()

    # --- inside -------------------------------------------------------------------------------------------

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"flowstate_{name}", help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"flowstate_{name}", help, labels, buckets=buckets, registry=self.registry)


class _Turn(TurnWatch):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self.outcome = "error"

    def step(self, trace: StepTrace) -> None:
        self._metrics.step(trace)

    def events(self, events: Sequence[Event]) -> None:
        self._metrics.events(events)

    def ended(self, result: RequestResult) -> None:
        self.outcome = result.outcome


_KINDS = frozenset(
    {"timeout", "raised", "bad_arguments", "bad_result", "unknown_tool", "unknown_outcome", "cancelled"}
)


def _failure(event: ToolFinished) -> str:
    """The kind of a failure; those that tools make up themselves count as one."""
    if event.failure is None:
        return ""
    return event.failure.kind if event.failure.kind in _KINDS else "tool"
