"""Whatever is sent, the answer is never a fault of the server, and every refusal is JSON in OpenAI's shape."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from flowstate_local.server.admission import Limits
from flowstate_local.server.app import make_app
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox
from tests.server.conftest import Running, listening

TEXT = "A reply."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str]]:
    """One server for all of it, with something in the space `default`, and an operator's key."""
    store = MemoryStore()
    tenants = Tenants(tmp_path_factory.mktemp("fuzz") / "tenants.sqlite")
    key = tenants.issue(tenants.create("op", is_operator=True), "admin")
    engine = ScriptedEngine(lambda prompt: step(message=TEXT), check=False, remember=False)
    service = Service(engine, store, tenants, Toolbox([]), Limits(max_body_bytes=100_000))
    running = listening(service, tenants, store)
    headers = {"Authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers).raise_for_status()
    yield running, key
    running.stop()


def test_schemathesis_finds_no_fault(server: tuple[Running, str]) -> None:
    """Every operation of the description, with bodies and parameters that fit it and that don't."""
    running, key = server
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) > 30
    tried = 0
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(generation_mode=mode))
            def sent(case: Any) -> None:
                nonlocal tried
                tried += 1
                case.call_and_validate(headers={"Authorization": f"Bearer {key}"}, checks=CHECKS)

            # A negative case needs something to get wrong; and the key that speaks must live on.
            with suppress(Unsatisfiable):
                sent()
    assert tried > 300
    assert running.tenants.caller(key) is not None


CHECKS = (not_a_server_error, content_type_conformance, response_schema_conformance)


def test_the_description_is_complete(server: tuple[Running, str]) -> None:
    running, _ = server
    described = httpx.get(f"{running.url}/openapi.json").json()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            place = f"{method} {path}"
            assert operation.get("summary"), place
            assert operation.get("tags"), place
            is_open = path in ("/health", "/ready", "/metrics")
            assert is_open == ("security" not in operation), place
            assert "4XX" in operation["responses"], place


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=20)
    | st.sampled_from(["user", "tool", "assistant", "system", "call_r1_t1", "a/b", "x~y", "\ud800", "\x00"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["messages", "tools", "stream", "user", "n", "temperature", "max_tokens", "tool_choice", "input"]
)
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/spaces/x/import", "/v1/keys", "/v1/tenants"]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def refused_well(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text[:500]
    if answer.status_code >= 400:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]


@FUZZ
@given(path=st.sampled_from(PATHS), body=st.dictionaries(FIELDS, VALUES, max_size=4))
def test_any_json(server: tuple[Running, str], path: str, body: Any) -> None:
    send(server, path, json.dumps(body).encode())


MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "tool_call_id", "type"]), VALUES, max_size=4),
    max_size=3,
)


@FUZZ
@given(messages=MESSAGES, extra=st.dictionaries(FIELDS, VALUES, max_size=2))
def test_any_messages(server: tuple[Running, str], messages: Any, extra: Any) -> None:
    said = [{"role": "user", **message} for message in messages]
    send(server, "/v1/chat/completions", json.dumps(extra | {"messages": said}).encode())
    send(server, "/v1/responses", json.dumps(extra | {"input": said}).encode())


@FUZZ
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
def test_any_bytes(server: tuple[Running, str], path: str, body: bytes) -> None:
    send(server, path, body)


def send(server: tuple[Running, str], path: str, body: bytes, **headers: str) -> httpx.Response:
    running, key = server
    told = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
    answer = CLIENT.post(running.url + path, content=body, headers=told)
    refused_well(answer)
    return answer


CLIENT = httpx.Client(timeout=60)


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    yield
    CLIENT.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[" * 50_000,
        b'{"messages":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"max_tokens":1e400}',
        b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 4_000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5_000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"user":"\\ud800"}',
        b'{"messages":[{"role":"tool","content":["x"]}]}',
        b'{"messages":[{"role":"user","content":[1]}]}',
        b'{"messages":[{"role":"user","content":{"type":"text"}}]}',
        b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a","parameters":{"type":"array"}}}]}',
        b'{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"a","parameters":{"$ref":"#/x"}}}]}',
        b"\xff\xfe{}",
    ],
)
def test_known_traps(server: tuple[Running, str], body: bytes) -> None:
    for path in PATHS:
        send(server, path, body)


@FUZZ
@given(
    name=st.sampled_from(
        ["X-FlowState-Space", "X-FlowState-Date", "Idempotency-Key", "Authorization", "X-Request-Id"]
    ),
    value=st.binary(max_size=60).filter(lambda raw: not set(raw) & {0, 10, 13}),
)
def test_any_header(server: tuple[Running, str], name: str, value: bytes) -> None:
    running, key = server
    body = b'{"messages":[{"role":"user","content":"x"}]}'
    headers: list[tuple[bytes, bytes]] = [(b"Content-Type", b"application/json"), (name.encode(), value)]
    if name != "Authorization":
        headers.append((b"Authorization", f"Bearer {key}".encode()))
    try:
        answer = CLIENT.post(f"{running.url}/v1/chat/completions", content=body, headers=headers)
    except (httpx.LocalProtocolError, httpx.RemoteProtocolError):
        return  # not HTTP at all
    if answer.headers.get("content-type", "").startswith("text/plain"):
        assert answer.status_code == 400  # refused by the parser of HTTP, before us
        return
    refused_well(answer)


@FUZZ
@given(raw=st.binary(min_size=1, max_size=300))
def test_bytes_that_are_not_http(server: tuple[Running, str], raw: bytes) -> None:
    running, _ = server
    host, port = running.url.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=5)) as connection:
        connection.sendall(raw + b"\r\n\r\n")
        connection.settimeout(0.05)
        try:
            answer = connection.recv(100)
        except (TimeoutError, ConnectionError):
            answer = b""
    assert b" 50" not in answer[:14]
    assert httpx.get(f"{running.url}/health").status_code == 200


def test_a_body_without_a_length_is_bounded_too(server: tuple[Running, str]) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 10_000

    running, key = server
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    answer = httpx.post(f"{running.url}/v1/chat/completions", content=pieces(), headers=headers)
    assert answer.status_code == 413
    refused_well(answer)
    small = httpx.post(
        f"{running.url}/v1/chat/completions",
        content=iter([b'{"messages":[{"role":"user",', b'"content":"x"}]}']),
        headers=headers,
    )
    assert small.json()["choices"][0]["message"]["content"] == TEXT


def test_the_app_needs_no_folder(tmp_path: Path) -> None:
    tenants = Tenants(tmp_path / "t.sqlite")
    service = Service(ScriptedEngine([]), MemoryStore(), tenants, Toolbox([]))
    assert make_app(service).openapi()["info"]["title"] == "flowstate_local"
    tenants.close()
