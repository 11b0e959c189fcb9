"""Mem0: after each request facts are extracted from it, and those near the next request are put before it.

The open-source package itself (mem0ai), with all of it on this machine: our engine under its extraction prompt, our
embedder, and qdrant in a temporary folder of this instance. Results can't be compared with the Mem0 of the cloud,
which MemoryArena measured.

What depends on other packages being there is switched off, so that results don't depend on it either, and because
mem0 would fetch models for it: entity linking (spaCy) and the BM25 half of its search (fastembed). mem0 writes
today's date into its prompts; nothing else of the clock reaches the model.
"""

import asyncio
import concurrent.futures
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.baselines.embedder import Embedder, Vector
from flowstate_local.baselines.memory_call import MemoryCall, call_for_memory, fill
from flowstate_local.baselines.react import React, Transcript
from flowstate_local.errors import FlowStateError, StoreError, UsageError

PROVIDER = "flowstate_local"
"""Under which engine and embedder are registered with mem0."""
OWNER = "episode"
"""mem0's user_id; each instance has a store of its own all the same."""
TOP_K = 20
THRESHOLD = 0.1
TEMPERATURE = 0.1
"""These three are mem0's defaults."""
EXTRACTION_TOKENS = 4_096
MAX_FACTS = 8
ACKNOWLEDGED = "Noted."
"""mem0 takes conversations: the request is what the user says, and this is answered."""

_Result = TypeVar("_Result")
_importing = threading.Lock()


class Fact(BaseModel):
    """One memory, in the form that mem0's prompt asks for."""

    id: Annotated[str, Field(pattern="^[0-9]{1,2}$")]
    text: Annotated[str, Field(min_length=1)]
    attributed_to: Literal["user", "assistant"]


class Facts(BaseModel):
    """What an extraction answers. Links between memories are left out: mem0's open version doesn't read them."""

    memory: Annotated[list[Fact], Field(max_length=MAX_FACTS)]


class Mem0(React):
    """See the module. All that mem0 does happens in one thread of this instance.

    Args:
        setting: engine, tools, budget and instructions. mem0's prompt alone takes some 8,000 tokens of the window.
        embedder: finds memories by meaning.

    Raises:
        UsageError: mem0ai isn't installed. StoreError, from `ask`: mem0 failed.
    """

    def __init__(self, setting: Setting, embedder: Embedder) -> None:
        super().__init__(setting)
        if find_spec("mem0") is None:
            raise UsageError("Mem0 needs the package mem0ai", hint="Install flowstate-local[evaluation].")
        self._embedder = embedder
        self._bridge = _Bridge(embedder)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mem0")
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._memory: Any = None
        """None until there is something to remember."""
        self._closed = False

    @property
    def settings(self) -> dict[str, Any]:
        """What is in effect, to print beside results."""
        return {
            "mem0ai": version("mem0ai"),
            "embedder": self._embedder.name,
            "dimensions": self._embedder.dimensions,
            "vector_store": "qdrant, local",
            "top_k": TOP_K,
            "threshold": THRESHOLD,
            "temperature": TEMPERATURE,
            "extraction_tokens": EXTRACTION_TOKENS,
            "max_facts": MAX_FACTS,
            "memory_tokens": self.budget.memory_tokens,
            "bm25": False,
            "entities": False,
            "telemetry": False,
        }

    @property
    def folder(self) -> Path | None:
        """Where the memories lie; None before the first and after `close`."""
        return Path(self._folder.name) if self._folder else None

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """The nearest memories, best first, as far as the budget holds them."""
        if self._memory is None or not text.strip():
            return []
        # In lower case, as MemoryArena asks.
        found = await self._in_thread(lambda: self._search(text.lower()))
        return fill(self, "Memories of earlier requests\n", [f"- {memory}\n" for memory in found])

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Let mem0 extract what it finds worth keeping."""
        messages = [
            {"role": "user", "content": f"{transcript.text}\nEND: {answer.outcome}\n"},
            {"role": "assistant", "content": ACKNOWLEDGED},
        ]
        loop = asyncio.get_running_loop()
        self._bridge.ask = lambda said: asyncio.run_coroutine_threadsafe(self._extract(said, usage), loop)
        await self._in_thread(lambda: self._add(messages))

    async def close(self) -> None:
        """Close the store and remove its folder, after whatever is still going on in mem0's thread."""
        if self._closed:
            return
        self._closed = True
        self._bridge.give_up()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._clear)
        self._thread.shutdown(wait=False)

    async def _extract(self, messages: Sequence[dict[str, str]], usage: list[Usage]) -> str:
        """mem0's model call. What can't be used becomes an empty list, which mem0 takes for nothing to remember."""
        rules, text = (
            "\n".join(m["content"] for m in messages if (m["role"] == "system") == system)
            for system in (True, False)
        )
        call = MemoryCall("memories", rules, text, Facts, EXTRACTION_TOKENS, TEMPERATURE)
        facts = await call_for_memory(self, call, usage)
        return (facts or Facts(memory=[])).model_dump_json()

    async def _in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Run `work` in mem0's thread; what failed on our side of mem0 is raised, though mem0 may have caught it."""
        self._bridge.failure = None
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except asyncio.CancelledError:
            self._bridge.give_up()
            raise
        except FlowStateError:
            raise
        except Exception as error:
            raise self._bridge.failure or StoreError(f"mem0 failed: {error}") from error
        if self._bridge.failure is not None:
            raise self._bridge.failure
        return result

    # --- in mem0's thread -------------------------------------------------------------------------------------

    def _add(self, messages: list[dict[str, str]]) -> None:
        if self._memory is None:
            self._folder = tempfile.TemporaryDirectory(prefix="flowstate-mem0-", ignore_cleanup_errors=True)
            self._memory = _open(Path(self._folder.name), self._bridge)
        self._memory.add(messages, user_id=OWNER)

    def _search(self, text: str) -> list[str]:
        found = self._memory.search(text, top_k=TOP_K, filters={"user_id": OWNER}, threshold=THRESHOLD)
        return [str(one["memory"]) for one in found["results"]]

    def _clear(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory.vector_store.client.close()
            self._memory = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class _Bridge:
    """What mem0's providers call: an engine on the event loop, and an embedder. Keeps the first thing that failed."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.ask: Callable[[Sequence[dict[str, str]]], concurrent.futures.Future[str]] | None = None
        self.failure: Exception | None = None
        self._waiting: concurrent.futures.Future[str] | None = None
        self._given_up = False

    def generate(self, messages: Sequence[dict[str, str]]) -> str:
        """Wait for the engine."""
        assert self.ask is not None, "mem0 asks a model only while it adds"
        try:
            if self._given_up:
                raise concurrent.futures.CancelledError
            self._waiting = self.ask(messages)
            return self._waiting.result()
        except Exception as error:
            self.failure = self.failure or error
            raise
        finally:
            self._waiting = None

    def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Call the embedder."""
        try:
            return self.embedder.embed(texts)
        except Exception as error:
            self.failure = self.failure or error
            raise

    def give_up(self) -> None:
        """Let mem0's thread wait for no answer, now or later: the request was cancelled, or the method is closed."""
        self._given_up = True
        if (waiting := self._waiting) is not None:
            waiting.cancel()


# --- what mem0 is given -------------------------------------------------------------------------------------------


@dataclass
class EngineConfig:
    """Of `EngineLlm`, as mem0's factory makes it."""

    bridge: _Bridge
    model: str = PROVIDER


class EngineLlm:
    """Our engine as a model provider of mem0, which calls nothing else of it."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def generate_response(self, messages: Sequence[dict[str, str]], **options: Any) -> str:
        """The model's JSON. mem0's options only ask for JSON, which the grammar ensures."""
        return self.config.bridge.generate(messages)


class EmbedderAdapter:
    """Our embedder as an embedding provider of mem0."""

    def __init__(self, config: Any) -> None:
        self.config = config
        # mem0 makes the config, and only this field of it takes what isn't its own.
        self._bridge: _Bridge = config.model_kwargs["bridge"]

    def embed(self, text: str, memory_action: str | None = None) -> Vector:
        """One vector, whatever it's for."""
        (vector,) = self._bridge.embed([text])
        return vector

    def embed_batch(self, texts: Sequence[str], memory_action: str | None = None) -> list[Vector]:
        """One vector for each text."""
        return self._bridge.embed(texts)


def _open(folder: Path, bridge: _Bridge) -> Any:
    """A mem0 whose every part is ours or lies in `folder`."""
    _import_mem0(folder)
    from mem0 import Memory
    from mem0.configs.base import MemoryConfig
    from mem0.embeddings.configs import EmbedderConfig
    from mem0.llms.configs import LlmConfig
    from mem0.utils.factory import EmbedderFactory, LlmFactory
    from mem0.vector_stores.configs import VectorStoreConfig

    LlmFactory.register_provider(PROVIDER, f"{__name__}.{EngineLlm.__name__}", EngineConfig)
    EmbedderFactory.provider_to_class[PROVIDER] = f"{__name__}.{EmbedderAdapter.__name__}"
    dimensions = bridge.embedder.dimensions
    store = {
        "collection_name": OWNER,
        "embedding_model_dims": dimensions,
        "path": str(folder / "qdrant"),
        "on_disk": True,
    }
    embedding = {"embedding_dims": dimensions, "model_kwargs": {"bridge": bridge}}
    memory = Memory(
        MemoryConfig(
            # The validators of these two know mem0's own providers only, registered or not.
            llm=LlmConfig.model_construct(provider=PROVIDER, config={"bridge": bridge}),
            embedder=EmbedderConfig.model_construct(provider=PROVIDER, config=embedding),
            vector_store=VectorStoreConfig(provider="qdrant", config=store),
            history_db_path=str(folder / "history.db"),
        )
    )
    _switch_off(memory)
    return memory


def _import_mem0(folder: Path) -> None:
    """Import mem0 without telemetry and without a folder in the user's home: it reads both settings just once.

    Raises:
        UsageError: mem0 was imported before, with its telemetry on.
    """
    with _importing:
        os.environ["MEM0_TELEMETRY"] = "False"
        home = os.environ.get("MEM0_DIR")
        os.environ["MEM0_DIR"] = str(folder / "home")
        try:
            from mem0.memory import telemetry
        finally:
            if home is None:
                del os.environ["MEM0_DIR"]
            else:
                os.environ["MEM0_DIR"] = home
    if telemetry.MEM0_TELEMETRY:
        raise UsageError(
            "mem0 was imported with its telemetry on", hint="Set MEM0_TELEMETRY=False before importing mem0."
        )


def _switch_off(memory: Any) -> None:
    """No entity linking and no BM25: see the module. mem0 has no settings for this, so its own marks are set.

    Raises:
        UsageError: this mem0 has other marks; they would be without effect.
    """
    from mem0.utils import spacy_models

    marks = [(spacy_models, "_load_failed_full"), (spacy_models, "_load_failed_lemma")]
    for place, name in [*marks, (memory.vector_store, "_bm25_encoder")]:
        if not hasattr(place, name):
            raise UsageError(f"this mem0ai has no {name}", hint="Install flowstate-local[evaluation].")
    for place, name in marks:
        setattr(place, name, True)
    memory.vector_store._bm25_encoder = False
