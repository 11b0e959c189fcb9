"""OpenTelemetry traces of a server, with the semantic conventions for GenAI. Texts of people never enter a span.

The only importer of opentelemetry: what it needs is in the extra `server`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import time_ns

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from flowstate_local.completion import Sampling
from flowstate_local.events import Event, ToolFinished
from flowstate_local.loop import RequestResult, StepTrace
from flowstate_local.server.observe import HttpRequest, Observer, TurnWatch

AGENT = "flowstate"
PROVIDER = "vllm"


def exporting(endpoint: str, service: str = "flowstate") -> TracerProvider:
    """A provider that sends spans over OTLP/HTTP, in the background.

    Args:
        endpoint: base address of a collector, such as "http://localhost:4318".
        service: the name under which they are filed.
    """
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Tracing(Observer):
    """Spans of HTTP requests, turns (`invoke_agent`), model calls (`chat`) and tools (`execute_tool`).

    Args:
        provider: where spans go; `exporting` makes one.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("flowstate_local")

    @contextmanager
    def http(self, request: HttpRequest) -> Iterator[None]:
        """See `Observer`. A trace that the client began goes on."""
        token = context.attach(extract(request.headers))
        try:
            with self._tracer.start_as_current_span(request.method, kind=SpanKind.SERVER) as span:
                span.set_attribute("http.request.method", request.method)
                try:
                    yield
                finally:
                    span.update_name(f"{request.method} {request.route}".strip())
                    span.set_attribute("http.route", request.route)
                    span.set_attribute("http.response.status_code", request.status)
                    if request.status >= 500:
                        span.set_status(Status(StatusCode.ERROR))
        finally:
            context.detach(token)

    @contextmanager
    def turn(self, space: str, model: str, sampling: Sampling) -> Iterator[TurnWatch]:
        """See `Observer`."""
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": AGENT,
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": space,
        }
        name = f"invoke_agent {AGENT}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.INTERNAL, attributes=attributes) as span:
            yield _Turn(self._tracer, span, model, sampling)


class _Turn(TurnWatch):
    def __init__(self, tracer: Tracer, span: Span, model: str, sampling: Sampling) -> None:
        self._tracer = tracer
        self._span = span
        self._parent = trace.set_span_in_context(span)
        self._model = model
        self._sampling = sampling

    def step(self, trace: StepTrace) -> None:
        ended_ns = time_ns()
        begun_ns = ended_ns - _ns(trace.total_s)
        completion = trace.completion
        span = self._tracer.start_span(
            f"chat {self._model}",
            context=self._parent,
            kind=SpanKind.CLIENT,
            start_time=begun_ns,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": self._model,
                "gen_ai.request.temperature": self._sampling.temperature,
                "gen_ai.request.top_p": self._sampling.top_p,
                "gen_ai.response.model": self._model,
                "gen_ai.response.finish_reasons": (completion.finish_reason,),
                "gen_ai.response.time_to_first_chunk": completion.ttft_s,
                "gen_ai.output.type": "json",
                "gen_ai.usage.input_tokens": completion.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": completion.cached_tokens,
                "gen_ai.usage.output_tokens": completion.generated_tokens,
                "flowstate.request": trace.request,
                "flowstate.step": trace.step,
            },
        )
        if trace.output is None:
            span.set_attribute("error.type", completion.finish_reason)
            span.set_status(Status(StatusCode.ERROR))
        span.end(begun_ns + _ns(trace.engine_s + trace.grammar_s))

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ToolFinished):
                self._tool(event)

    def _tool(self, event: ToolFinished) -> None:
        ended_ns = time_ns()
        span = self._tracer.start_span(
            f"execute_tool {event.name}",
            context=self._parent,
            start_time=ended_ns - _ns(event.duration_s),
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": event.name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": event.evidence,
                "flowstate.request": event.request,
                "flowstate.step": event.step,
            },
        )
        if event.failure is not None:
            span.set_attribute("error.type", event.failure.kind)
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended_ns)

    def ended(self, result: RequestResult) -> None:
        self._span.set_attribute("gen_ai.usage.input_tokens", result.prompt_tokens)
        self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", result.cached_tokens)
        self._span.set_attribute("gen_ai.usage.output_tokens", result.generated_tokens)
        self._span.set_attribute("flowstate.outcome", result.outcome)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
