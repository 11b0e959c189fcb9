"""The server's process is killed or asked to stop in mid-stream; the client asks again, and nothing happens twice."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from flowstate_local.stores.lmdb import LmdbStore

CHILD = Path(__file__).with_name("serve_child.py")
ASKED: Any = [{"role": "user", "content": "Pay 7"}]
Start = Callable[[], "subprocess.Popen[bytes]"]


class Place:
    """Where a server keeps its things, and how to reach it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        key = (self.folder / "key").read_text()
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def payments(self) -> list[str]:
        path = self.folder / "payments"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    running: list[subprocess.Popen[bytes]] = []

    def one() -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(CHILD), str(place.folder), str(place.port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        running.append(process)
        for _ in range(600):
            try:
                httpx.get(f"{place.url}/ready").raise_for_status()
                return process
            except httpx.HTTPError:
                assert process.poll() is None, process.stderr.read()  # type: ignore[union-attr]
                time.sleep(0.05)
        raise AssertionError("the server didn't start")

    yield one
    for process in running:
        process.kill()
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]


def read(client: openai.OpenAI, on_piece: Callable[[int], None] = lambda n: None) -> str:
    stream = client.chat.completions.create(model="x", messages=ASKED, stream=True)
    said, pieces = "", 0
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            said += chunk.choices[0].delta.content
            pieces += 1
            on_piece(pieces)
    return said


REPLY_START = "Paid 7, and that is all"


def test_killed_in_mid_stream_the_request_goes_on_where_it_was(place: Place, start: Start) -> None:
    process = start()

    def kill(pieces: int) -> None:
        if pieces == 3:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()

    with place.client() as client, pytest.raises((openai.APIError, httpx.HTTPError)):
        read(client, kill)
    assert place.payments() == ["7"]
    start()
    with place.client() as client:
        said = read(client)
    assert said.startswith(REPLY_START)
    assert place.payments() == ["7"], "the server's tool ran once"
    with LmdbStore.open(place.folder / "store", readonly=True) as store:
        (space,) = store.spaces()
        assert [r.outcome for r in store.requests(space)] == ["replied"]
        kinds = [event.kind for event in store.events(space)]
        assert kinds.count("ToolStarted") == kinds.count("RequestStarted") == 1
        assert store.verify(space) == []


def test_killed_while_a_tool_runs_it_is_not_run_again(place: Place, start: Start) -> None:
    process = start()
    with place.client() as client:
        stream = client.chat.completions.create(model="x", messages=ASKED, stream=True)
        while not place.payments():
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            list(stream)
    process.wait()
    start()
    with place.client() as client:
        assert read(client).startswith(REPLY_START)
    assert place.payments() == ["7"]
    with LmdbStore.open(place.folder / "store", readonly=True) as store:
        (space,) = store.spaces()
        (result,) = [event for event in store.events(space) if event.kind == "ToolFinished"]
        assert result.failure is not None
        assert result.failure.kind == "unknown_outcome", "the model is told that nobody knows"
        assert store.verify(space) == []


def test_asked_to_stop_it_lets_streams_end_and_takes_nothing_new(place: Place, start: Start) -> None:
    process = start()

    def stop(pieces: int) -> None:
        if pieces == 2:
            process.send_signal(signal.SIGTERM)

    with place.client() as client:
        said = read(client, stop)
        assert said.startswith(REPLY_START)
        assert len(said) > 300
    assert process.wait(timeout=30) == 0
    assert (place.folder / "closed").exists(), "engine, traces and store get their end, too"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{place.url}/ready")
