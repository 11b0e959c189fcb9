"""Metrics, traces and logs, each read by the software it is made for."""

import gzip
import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as conventions
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from flowstate_local import logs
from flowstate_local.server.admission import Limits
from flowstate_local.server.tracing import Tracing, exporting
from flowstate_local.testing import step
from flowstate_local.tools import tool
from tests.server.conftest import Running

Serve = Callable[..., Running]


@tool(idempotent=True)
def read_page(name: str) -> str:
    """Read a page."""
    if name == "lost":
        raise LookupError("no such page")
    return f"All of {name}"


SCRIPT = [
    step(calls=[("read_page", {"name": "terms"})]),
    step(calls=[("read_page", {"name": "lost"})]),
    step(
        delta=[
            {"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "All of it"},
            {"type": "knowledge", "id": "n2", "evidence": ["t9"], "summary": "From nowhere"},
        ]
    ),
    "nonsense",
    step(message="Read."),
]


def ask(server: Running, key: str, text: str = "Read it", **headers: str) -> httpx.Response:
    body = {"model": "x", "user": "private-space", "messages": [{"role": "user", "content": text}]}
    return httpx.post(
        f"{server.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {key}", **headers},
    )


def read_metrics(server: Running) -> dict[str, dict[tuple[str, ...], float]]:
    text = httpx.get(f"{server.url}/metrics").text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for key, value in sorted(sample.labels.items()) if key != "le")
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def test_metrics_say_what_happened(serve: Serve) -> None:
    server = serve(SCRIPT, tools=[read_page])
    key = server.key("ana")
    assert ask(server, key).status_code == 200
    assert ask(server, "fs-wrong").status_code == 401
    found = read_metrics(server)
    assert found["flowstate_steps_total"] == {("used",): 4, ("fault",): 1}
    assert found["flowstate_turns_total"] == {("replied",): 1}
    assert found["flowstate_faults_total"] == {("unparsable",): 1}
    assert found["flowstate_refusals_total"][("isu", "evidence_unknown")] == 1
    assert found["flowstate_tool_calls_total"] == {("", "read_page"): 1, ("raised", "read_page"): 1}
    tokens = found["flowstate_tokens_total"]
    assert tokens[("prompt",)] > tokens[("cached",)] > 0 < tokens[("generated",)]
    for name in ("step_engine", "step_overhead", "ttft", "grammar_compile"):
        assert found[f"flowstate_{name}_seconds_count"][()] == 5, name
    assert found["flowstate_store_seconds_count"][("append",)] >= 5
    assert found["flowstate_store_seconds_count"][("persist",)] == 1
    assert (found["flowstate_turns_running"][()], found["flowstate_turns_waiting"][()]) == (0, 0)
    assert found["flowstate_spaces"][()] == 1
    requests = found["flowstate_http_requests_total"]
    assert requests[("POST", "/v1/chat/completions", "200")] == 1
    assert requests[("POST", "/v1/chat/completions", "401")] == 1
    text = httpx.get(f"{server.url}/metrics").text
    assert "private-space" not in text
    assert "ana" not in text.replace("annotations", "")


def test_what_is_turned_away_is_counted_and_strangers_make_no_labels(serve: Serve) -> None:
    server = serve(lambda prompt: step(message="x"), limits=Limits(max_body_bytes=400))
    key = server.key("slow", requests_per_minute=1)
    assert [ask(server, key).status_code for _ in range(2)] == [200, 429]
    assert ask(server, key, "x" * 400).status_code == 413
    for path in ("/nothing", "/v1/nothing/at/all", "/v1/spaces/a/b/c/d"):
        assert httpx.get(server.url + path).status_code == 404
    found = read_metrics(server)
    assert found["flowstate_rejected_total"] == {("rate_limit_exceeded",): 1}
    assert found["flowstate_http_requests_total"][("GET", "", "404")] == 3


class Collector:
    """Speaks OTLP over HTTP, as far as traces go."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                encoding = self.headers.get("Content-Encoding", "")
                raw = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(encoding, bytes)(raw)
                for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans += scope.spans
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_traces_follow_a_turn_from_the_client_to_the_tools(serve: Serve, collector: Collector) -> None:
    provider = exporting(collector.url)
    server = serve(SCRIPT, tools=[read_page], observers=[Tracing(provider)])
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    parent = f"00-{trace_id}-b7ad6b7169203331-01"
    assert ask(server, server.key("ana"), "My secret wish", traceparent=parent).status_code == 200
    server.stop()
    provider.shutdown()
    spans = {span.span_id: span for span in collector.spans}
    assert {span.trace_id.hex() for span in spans.values()} == {trace_id}
    names = sorted(span.name for span in spans.values())
    assert names == sorted(
        ["POST /v1/chat/completions", "invoke_agent flowstate"]
        + ["chat script"] * 5
        + ["execute_tool read_page"] * 2
    )
    turn = next(span for span in spans.values() if span.name.startswith("invoke_agent"))
    http = spans[turn.parent_span_id]
    assert (http.name, http.parent_span_id.hex()) == ("POST /v1/chat/completions", "b7ad6b7169203331")
    inner = [s for s in spans.values() if s.name.startswith(("chat", "execute"))]
    assert all(span.parent_span_id == turn.span_id for span in inner)
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
    chat = attributes(next(span for span in inner if span.name.startswith("chat")))
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.usage.input_tokens"] > 0
    failed = [attributes(s)["error.type"] for s in inner if "error.type" in attributes(s)]
    assert sorted(failed) == ["raised", "stop"]
    known = {value for name, value in vars(conventions).items() if name.startswith("GEN_AI")}
    used = {key for span in spans.values() for key in attributes(span) if key.startswith("gen_ai.")}
    assert used <= known, "only attributes that the conventions have"
    assert "My secret wish" not in str(collector.spans)


def test_every_line_of_the_log_can_be_found_by_the_id_of_its_request(
    serve: Serve, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.jsonl"
    handler = logs.write_to(str(path))
    logging.getLogger("flowstate_local.server").setLevel(logging.INFO)
    try:
        server = serve(SCRIPT, tools=[read_page])
        key = server.key("ana")
        answer = ask(server, key, "My secret wish", **{"X-Request-Id": "abc-1"})
        assert answer.headers["x-request-id"] == "abc-1"
        made_up = ask(server, "fs-wrong", **{"X-Request-Id": "no good!"})
        assert len(made_up.headers["x-request-id"]) == 32
        server.stop()
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    mine = [line for line in lines if line.get("http_request") == "abc-1"]
    assert {"RequestStarted", "ToolFinished", "RequestFinished"} <= {line["message"] for line in mine}
    access = next(line for line in mine if line["message"] == "POST 200")
    assert (access["route"], access["tenant"], access["status"]) == ("/v1/chat/completions", "ana", 200)
    assert access["duration_ms"] > 0
    replied = next(line for line in mine if line["message"] == "ModelReplied")
    assert replied["event"]["prompt_tokens"] > 0
    assert key not in path.read_text()
    assert "My secret wish" not in path.read_text()
    assert "terms" not in path.read_text(), "nor arguments, results or replies"
    assert "fs-wrong" not in path.read_text()
