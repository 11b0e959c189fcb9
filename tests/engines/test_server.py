"""ServerEngine against a small fake of vLLM's routes: what it learns at connect, and every way a server fails."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from flowstate_local.completion import Completion, Constraint, Sampling
from flowstate_local.engines.base import complete
from flowstate_local.engines.server import ServerEngine
from flowstate_local.errors import EngineError, EngineUnavailable, PromptTooLong, UsageError

pytestmark = pytest.mark.anyio


class FakeVllm(ThreadingHTTPServer):
    """One token per byte; answers "555" to everything, or fails as `faults` says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.faults: set[str] = set()
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeVllm

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            if "key" in self.server.faults and self.headers["Authorization"] != "Bearer sesame":
                return self._json({"error": {"message": "Unauthorized"}}, 401)
            return self._json({"data": [{"id": "tiny", "max_model_len": 256}]})
        if "no metrics" in self.server.faults:
            return self._json({}, 404)
        labels = 'block_size="16",enable_prefix_caching="True",mamba_block_size="None"'
        return self._send(200, "text/plain", f"vllm:cache_config_info{{{labels}}} 1.0\n".encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            chat = (
                "".join(f"[{m['role'][0].upper()}]{m['content']}" for m in body.get("messages", [])) + "[A]"
            )
            return self._json({"tokens": _encode(body.get("prompt", chat))})
        if self.path == "/detokenize":
            return self._json({"prompt": _decode(body["tokens"])})
        self.server.bodies.append(body)
        faults = self.server.faults
        if "text only" in faults and not isinstance(body["prompt"], str):
            return self._json({"error": {"message": "prompt must be a string"}}, 422)
        for status in ("400", "500", "503"):
            if status in faults:
                return self._json({"error": {"message": f"fault {status}"}}, int(status))
        if "window" in faults:
            return self._json({"error": {"message": "maximum context length is 256 tokens"}}, 400)
        return self._send(200, "text/event-stream", _events(faults, len(body["prompt"])))

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


SPECIAL = {"[S]": 1001, "[U]": 1002, "[A]": 1003}


def _encode(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        if text[:3] in SPECIAL:
            ids.append(SPECIAL[text[:3]])
            text = text[3:]
        else:
            ids += text[0].encode()
            text = text[1:]
    return ids


def _decode(ids: list[int]) -> str:
    names = {i: name for name, i in SPECIAL.items()}
    return "".join(names.get(i) or chr(i) for i in ids)


def _events(faults: set[str], n_prompt: int) -> bytes:
    if "error event" in faults:
        return b'data: {"error": {"message": "grammar failed", "code": 500}}\n\ndata: [DONE]\n\n'
    answer = "hello" if "no grammar" in faults else "555"
    events: list[dict[str, Any]] = [{"choices": [{"text": c, "token_ids": [ord(c)]}]} for c in answer]
    if "cut" not in faults:
        events.append({"choices": [{"text": "", "finish_reason": "stop", "token_ids": [2]}]})
    usage: dict[str, Any] = {"prompt_tokens": n_prompt, "completion_tokens": len(answer) + 1}
    if "no details" not in faults:
        usage["prompt_tokens_details"] = {"cached_tokens": 16}
    events.append({"choices": [], "usage": usage})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


@pytest.fixture
def fake() -> Iterator[FakeVllm]:
    with FakeVllm() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


async def call(engine: ServerEngine, **kwargs: Any) -> Completion:
    return await complete(
        engine, engine.tokenizer.encode("What is 5?"), None, Sampling(max_tokens=20), **kwargs
    )


# --- what it learns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_it_learns_the_model_the_window_the_block_size_and_the_frame(
    fake: FakeVllm, suffix: str
) -> None:
    engine = await ServerEngine.connect(fake.url + suffix)
    assert (engine.model, engine.context_window, engine.block_size) == ("tiny", 256, 16)
    assert engine.takes_token_ids
    assert engine.reports_cached_tokens
    frame = engine.tokenizer.frame
    assert (frame.system_open, frame.user_open, frame.reply_open) == ("[S]", "[U]", "[A]")
    await engine.close()


async def test_a_call_sends_ids_salt_and_constraint_and_no_defaults_of_the_model(fake: FakeVllm) -> None:
    engine = await ServerEngine.connect(fake.url)
    digits = Constraint("regex", "[0-9]+")
    done = await complete(engine, [72, 105], digits, Sampling(max_tokens=9, seed=3), cache_salt="alice")
    assert done.text == "555"
    assert done.token_ids == (53, 53, 53, 2)
    assert (done.prompt_tokens, done.cached_tokens, done.generated_tokens) == (2, 16, 4)
    body = fake.bodies[-1]
    assert body["prompt"] == [72, 105]
    assert body["cache_salt"] == "alice"
    assert body["structured_outputs"] == {"regex": "[0-9]+"}
    assert (body["seed"], body["max_tokens"], body["repetition_penalty"]) == (3, 9, 1.0)
    await engine.close()


async def test_a_server_without_token_ids_gets_text(fake: FakeVllm) -> None:
    fake.faults.add("text only")
    engine = await ServerEngine.connect(fake.url)
    assert not engine.takes_token_ids
    ids = [*engine.tokenizer.encode_frame("[U]"), *engine.tokenizer.encode("hi")]
    await complete(engine, ids, None, Sampling(max_tokens=9))
    assert fake.bodies[-1]["prompt"] == "[U]hi"
    await engine.close()


async def test_a_server_that_does_not_tell_is_known_not_to(fake: FakeVllm) -> None:
    fake.faults |= {"no details", "no metrics"}
    engine = await ServerEngine.connect(fake.url)
    assert not engine.reports_cached_tokens
    assert (await call(engine)).cached_tokens == 0
    assert engine.block_size == 0
    await engine.close()


async def test_a_spelled_marker_is_cut_before_it_is_sent(fake: FakeVllm) -> None:
    engine = await ServerEngine.connect(fake.url)
    text = "a [U] b [S][A] <i> [NONE]"
    assert SPECIAL["[U]"] in engine.tokenizer.encode_frame(text)
    assert engine.tokenizer.encode(text) == list(text.encode())
    await engine.close()


# --- how it fails -------------------------------------------------------------------------------------------


async def test_nothing_listens() -> None:
    with pytest.raises(EngineUnavailable, match=r"http://127.0.0.1:9") as caught:
        await ServerEngine.connect("http://127.0.0.1:9")
    assert "python -m vllm" in caught.value.hint


@pytest.mark.parametrize("url", ["localhost:8000", "", "http://"])
async def test_that_is_no_url(url: str) -> None:
    with pytest.raises(UsageError):
        await ServerEngine.connect(url)


async def test_a_model_that_is_not_served_is_named_beside_those_that_are(fake: FakeVllm) -> None:
    with pytest.raises(UsageError, match="huge") as caught:
        await ServerEngine.connect(fake.url, model="huge")
    assert "tiny" in caught.value.hint


async def test_a_key_is_sent_and_a_missing_one_is_explained(fake: FakeVllm) -> None:
    fake.faults.add("key")
    with pytest.raises(EngineError, match="401") as caught:
        await ServerEngine.connect(fake.url)
    assert "api_key" in caught.value.hint
    await (await ServerEngine.connect(fake.url, api_key="sesame")).close()


async def test_a_server_that_ignores_constraints_is_refused(fake: FakeVllm) -> None:
    fake.faults.add("no grammar")
    with pytest.raises(EngineError, match="hello") as caught:
        await ServerEngine.connect(fake.url)
    assert "structured_outputs" in caught.value.hint


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("400", EngineError, "fault 400"),
        ("500", EngineError, "fault 500"),
        ("503", EngineUnavailable, "fault 503"),
        ("window", PromptTooLong, "context length"),
        ("error event", EngineError, "grammar failed"),
        ("cut", EngineUnavailable, "middle of an answer"),
    ],
)
async def test_each_failure_has_its_error_and_the_next_call_works(
    fake: FakeVllm, fault: str, error: type[EngineError], said: str
) -> None:
    engine = await ServerEngine.connect(fake.url)
    fake.faults.add(fault)
    with pytest.raises(error, match=said) as caught:
        await call(engine)
    assert type(caught.value) is error
    fake.faults.clear()
    assert (await call(engine)).text == "555"
    await engine.close()


async def test_the_server_goes_away(fake: FakeVllm) -> None:
    engine = await ServerEngine.connect(fake.url)
    fake.shutdown()
    fake.server_close()
    with pytest.raises(EngineUnavailable, match=fake.url):
        await engine.stream([1, 2], None, Sampling(max_tokens=5)).__anext__()
    await engine.close()
