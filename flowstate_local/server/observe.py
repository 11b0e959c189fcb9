"""What watches a server: metrics, traces, logs. Each is an `Observer`; the service tells all of them the same things."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from flowstate_local import logs
from flowstate_local.completion import Sampling
from flowstate_local.events import Event, ToolFinished
from flowstate_local.loop import RequestResult, StepTrace


class HttpRequest:
    """A request of HTTP while it runs; `route` and `status` are known at its end."""

    def __init__(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.route = ""
        """The template of the path; "" where none fits, so that strangers can't make up values."""
        self.status = 0
        self.duration_s = 0.0


class TurnWatch:
    """What is told of one turn. Every method does nothing here."""

    def step(self, trace: StepTrace) -> None:
        """A step is done."""

    def events(self, events: Sequence[Event]) -> None:
        """Events are durable."""

    def ended(self, result: RequestResult) -> None:
        """The turn came to this; not told if it raised."""


class Observer:
    """What is told of a whole server. Every method does nothing here."""

    def http(self, request: HttpRequest) -> AbstractContextManager[None]:
        """Around a request of HTTP."""
        return nullcontext()

    def turn(self, space: str, model: str, sampling: Sampling) -> AbstractContextManager[TurnWatch]:
        """Around a turn, from its admission to its end."""
        return nullcontext(TurnWatch())

    def rejected(self, code: str) -> None:
        """A turn was turned away, for the reason that the client is told."""

    def store(self, operation: str, seconds: float) -> None:
        """The store did something."""


class EventLog(Observer):
    """Writes durable events to the log (`logs.log_events`), without what tenants and models said."""

    def turn(self, space: str, model: str, sampling: Sampling) -> AbstractContextManager[TurnWatch]:
        """See `Observer`."""
        return nullcontext(_EventLogTurn())


class _EventLogTurn(TurnWatch):
    def events(self, events: Sequence[Event]) -> None:
        logs.log_events(events, texts=False)


class Observers(Observer):
    """Tells several."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._all = tuple(observers)

    @contextmanager
    def http(self, request: HttpRequest) -> Iterator[None]:
        """See `Observer`."""
        with ExitStack() as stack:
            for one in self._all:
                stack.enter_context(one.http(request))
            yield

    @contextmanager
    def turn(self, space: str, model: str, sampling: Sampling) -> Iterator[TurnWatch]:
        """See `Observer`."""
        with ExitStack() as stack:
            yield _Several([stack.enter_context(one.turn(space, model, sampling)) for one in self._all])

    def rejected(self, code: str) -> None:
        """See `Observer`."""
        for one in self._all:
            one.rejected(code)

    def store(self, operation: str, seconds: float) -> None:
        """See `Observer`."""
        for one in self._all:
            one.store(operation, seconds)


class _Several(TurnWatch):
    def __init__(self, watches: Sequence[TurnWatch]) -> None:
        self._watches = watches

    def step(self, trace: StepTrace) -> None:
        for one in self._watches:
            one.step(trace)

    def events(self, events: Sequence[Event]) -> None:
        for one in self._watches:
            one.events(events)

    def ended(self, result: RequestResult) -> None:
        for one in self._watches:
            one.ended(result)


def tools_s(trace: StepTrace) -> float:
    """Seconds that tools took in a step."""
    return sum(event.duration_s for event in trace.events if isinstance(event, ToolFinished))


def overhead_s(trace: StepTrace) -> float:
    """Seconds of a step that were neither the engine's nor a tool's: prompt, grammar, ISU, PSA, commits."""
    return max(0.0, trace.total_s - trace.engine_s - tools_s(trace))
