"""Engines for the conformance suite, one at a time, each started once per session."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from flowstate_local.engines.base import Engine
from flowstate_local.models import resolve
from flowstate_local.testing import ScriptedEngine

WINDOW = 2048


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What closes the engine of the session comes last, in whichever file it stands."""
    items.sort(key=lambda item: item.name.startswith("test_closing_twice"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def model_folder() -> str:
    """A real model, small enough for tests: FLOWSTATE_TEST_MODEL, or the catalogue's smallest."""
    return str(resolve(os.environ.get("FLOWSTATE_TEST_MODEL", "smollm2-135m-instruct")))


async def scripted(model_folder: str) -> Engine:
    return ScriptedEngine(lambda prompt: "The capital of France is Paris.", context_window=WINDOW)


async def vllm(model_folder: str) -> Engine:
    from flowstate_local.engines.vllm import VllmEngine

    return await VllmEngine.start(model_folder, context_window=WINDOW, kv_space_gib=0.5)


async def vllm_outlines(model_folder: str) -> Engine:
    from flowstate_local.engines.vllm import VllmEngine

    return await VllmEngine.start(model_folder, context_window=WINDOW, kv_space_gib=0.5, profile="outlines")


async def transformers(model_folder: str) -> Engine:
    from flowstate_local.engines.transformers import TransformersEngine

    return await TransformersEngine.start(model_folder, context_window=WINDOW)


ENGINES: dict[str, Callable[[str], Awaitable[Engine]]] = {
    "scripted": scripted,
    "vllm": vllm,
    "vllm-outlines": vllm_outlines,
    "transformers": transformers,
}


@pytest.fixture(scope="session")
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """The engine named by the test's parameter."""
    if request.param == "scripted":
        yield await scripted("")
        return
    folder: str = request.getfixturevalue("model_folder")
    if request.param == "server":
        from flowstate_local.engines.server import ServerEngine

        with vllm_server(folder, request.getfixturevalue("tmp_path_factory").mktemp("server")) as url:
            started: Engine = await ServerEngine.connect(url)
            yield started
            await started.close()
        return
    started = await ENGINES[request.param](folder)
    yield started
    await started.close()


@contextmanager
def vllm_server(model_folder: str, log_folder: Path) -> Iterator[str]:
    """Run a vLLM server; yields its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
    command += ["--model", model_folder, "--served-model-name", "test", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--max-model-len", str(WINDOW), "--enforce-eager", "--block-size", "32"]
    command += ["--kv-cache-memory-bytes", str(500_000_000), "--enable-prompt-tokens-details"]
    command += ["--structured-outputs-config", '{"backend":"guidance","disable_any_whitespace":true}']
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": cores}
    log_path = log_folder / "vllm.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=quiet | os.environ, start_new_session=True
        )
    try:
        _wait_until_ready(process, f"http://127.0.0.1:{port}", log_path)
        yield f"http://127.0.0.1:{port}"
    finally:
        with_children = process.pid
        os.killpg(with_children, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(with_children, signal.SIGKILL)
            process.wait()


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"the vLLM server did not start:\n{log.read_text()[-3000:]}")
