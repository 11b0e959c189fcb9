"""`flowstate serve` as a user starts it, with vLLM and a small real model behind it, asked by the official client."""

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.engine
START = "from flowstate_local.cli.main import main; main()"


@dataclass
class Served:
    """A server that was started on the command line."""

    process: "subprocess.Popen[str]"
    url: str
    key: str
    log: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", START, "serve", "--model", "smollm2-135m-instruct"]
    command += ["--port", str(port), "--store", str(folder / "store"), "--log", str(folder / "log.jsonl")]
    said = folder / "stderr"
    with said.open("w") as stderr:
        process = subprocess.Popen(command, stdout=stderr, stderr=stderr, text=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1_200):
            try:
                httpx.get(f"{url}/ready").raise_for_status()
                break
            except httpx.HTTPError:
                assert process.poll() is None, said.read_text()
                time.sleep(0.25)
        found = re.search(r"fs-[A-Za-z0-9_-]{43}", said.read_text())
        assert found is not None, said.read_text()
        yield Served(process, url, found[0], folder / "log.jsonl")
    finally:
        process.kill()
        process.wait()


def test_a_real_model_talks_to_the_official_client(served: Served) -> None:
    ask: Any = {"model": "any", "user": "trip", "temperature": 0.0, "max_tokens": 200}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key, timeout=600) as client:
        assert client.models.list().data[0].id == "smollm2-135m-instruct"
        first = client.chat.completions.create(
            **ask, messages=[{"role": "user", "content": "I like tea. Please remember it."}]
        )
        assert first.choices[0].finish_reason in ("stop", "length")
        assert first.usage is not None
        assert first.usage.completion_tokens > 0
        stream = client.chat.completions.create(
            **ask,
            messages=[{"role": "user", "content": "What do I like?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert chunks[-1].usage is not None
        details = chunks[-1].usage.prompt_tokens_details
        assert details is not None
        assert details.cached_tokens > 1_000, "rules and tools come from the prefix cache"
        response = client.responses.create(
            model="any", input="And now?", conversation="trip", temperature=0.0
        )
        assert response.status in ("completed", "incomplete")
    with httpx.Client(base_url=f"{served.url}/v1", headers={"Authorization": f"Bearer {served.key}"}) as api:
        assert api.get("/spaces/trip").json()["version"] == 3
        assert api.post("/spaces/trip/verify").json() == []
        events = api.get("/spaces/trip/timeline", params={"limit": 1_000}).json()["data"]
    replies = [event for event in events if event["kind"] == "ModelReplied"]
    assert not [reply["fault"] for reply in replies if reply["fault"]], "grammatical by construction"
    metrics = httpx.get(f"{served.url}/metrics").text
    assert f'flowstate_steps_total{{outcome="used"}} {len(replies)}.0' in metrics


def test_asked_to_stop_it_ends_in_order(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(timeout=60) in (0, -signal.SIGTERM)
    assert "RequestFinished" in served.log.read_text()
