"""A running vLLM server as an engine: token ids over HTTP, streamed back as server-sent events.

Knows httpx and vLLM's HTTP routes, but not the vllm package.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import httpx

from flowstate_local.completion import ChatFrame, Chunk, Completion, Constraint, Profile, Sampling, Tokenizer
from flowstate_local.engines.chat_template import (
    FRAME_CHATS,
    TEMPLATE_ARGUMENTS,
    HfTokenizer,
    cut_frame,
    no_frame,
)
from flowstate_local.errors import EngineError, EngineUnavailable, FlowStateError, PromptTooLong, UsageError

_START = (
    "Start one with `python -m vllm.entrypoints.launchers.api_server.entry --model ...`, or check the URL."
)

_MARKER_LIKE = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{1,32}\]")
"""Spellings that may be one special token: `<|im_end|>`, `</s>`, `<start_of_turn>`, `[INST]`."""


class ServerEngine:
    """An `engines.base.Engine` over HTTP. Create it with `connect`.

    Attributes:
        url: root of the server, without `/v1`.
        takes_token_ids: False where the server only takes text; then a prompt is sent as text, and cached prefixes
            may be lost where the text tokenises differently.
        reports_cached_tokens: False where the server was started without `--enable-prompt-tokens-details`;
            `Completion.cached_tokens` is then 0, which says nothing.
    """

    name = "server"

    def __init__(
        self, http: httpx.AsyncClient, url: str, model: str, tokenizer: Tokenizer, profile: Profile
    ) -> None:
        self.url = url
        self.model = model
        self.profile = profile
        self.tokenizer = tokenizer
        self.context_window = 0
        self.block_size = 0
        self.takes_token_ids = True
        self.reports_cached_tokens = True
        self._http = http

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        profile: Profile = "guidance",
        tokenizer_folder: str | None = None,
        timeout_s: float = 600.0,
    ) -> "ServerEngine":
        """Find out what the server is and can do; generates a few tokens.

        Args:
            url: such as "http://localhost:8000"; a trailing "/v1" is fine.
            model: name as the server lists it; None: the only one, or the first.
            api_key: sent as a bearer token.
            profile: the structured-outputs backend that the server was started with; it can't be asked.
            tokenizer_folder: model folder or hub id to tokenise here. Faster than asking the server, which
                also blocks the event loop for each text that is not yet known.
            timeout_s: longest wait for the next piece of an answer.

        Raises:
            EngineUnavailable: nothing answers at `url`.
            UsageError: the server doesn't serve `model`.
            EngineError: it refuses the key, or doesn't enforce constraints.
        """
        root = url.rstrip("/").removesuffix("/v1")
        client: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "timeout": httpx.Timeout(timeout_s, connect=10.0),
            "limits": httpx.Limits(max_connections=None),
        }
        http = httpx.AsyncClient(**client)
        try:
            served = await _served_model(http, root, model)
            tokenizer = await asyncio.to_thread(_tokenizer, root, served["id"], tokenizer_folder, client)
            engine = cls(http, root, served["id"], tokenizer, profile)
            engine.context_window = served.get("max_model_len") or 0
            engine.block_size = await _block_size(http, root)
            await engine._probe()
        except BaseException:
            await http.aclose()
            raise
        return engine

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """See `engines.base.Engine`. Leaving the stream closes the connection, at which vLLM aborts the request."""
        if self._http.is_closed:
            raise EngineUnavailable(f"the connection to {self.url} is closed", hint="Connect again.")
        if self.context_window and len(prompt_ids) + sampling.max_tokens > self.context_window:
            raise PromptTooLong(
                f"{len(prompt_ids)} prompt tokens + max_tokens {sampling.max_tokens} > window {self.context_window}"
            )
        body = self._body(prompt_ids, constraint, sampling, cache_salt)
        run = _Run(prompt_tokens=len(prompt_ids))
        # The last text waits for the usage, which comes in an event of its own.
        held = ""
        async with aclosing(self._events(body)) as events:
            async for event in events:
                text = run.add(event)
                if run.finish_reason is not None:
                    held += text
                elif text:
                    yield Chunk(text)
        yield Chunk(held, run.completion(self.url))

    async def close(self) -> None:
        """See `engines.base.Engine`. The server goes on running."""
        await self._http.aclose()
        if isinstance(self.tokenizer, ServerTokenizer):
            self.tokenizer.close()

    def _body(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        cache_salt: str | None,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": list(prompt_ids) if self.takes_token_ids else self._decode(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # Without these the server would take a model's own defaults (Qwen: top_k 20, repetition_penalty 1.1),
            # and the same call would differ from one engine to the other.
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "add_special_tokens": False,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if cache_salt is not None:
            body["cache_salt"] = cache_salt
        if constraint is not None:
            body["structured_outputs"] = {constraint.kind: constraint.text}
        return body

    def _decode(self, prompt_ids: Sequence[int]) -> str:
        if isinstance(self.tokenizer, ServerTokenizer | HfTokenizer):
            return self.tokenizer.decode(list(prompt_ids))
        raise EngineError(f"{self.url} takes no token ids, and this tokenizer can't turn them into text")

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """Yield the events of one streamed completion, as parsed JSON."""
        with _translated(self.url):
            async with self._http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
                await _raise_for_status(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    payload = line.removeprefix("data:").strip()
                    if payload == "[DONE]":
                        return
                    event = json.loads(payload)
                    if error := event.get("error"):
                        raise _refusal(
                            self.url, int(error.get("code") or 500), str(error.get("message", error))
                        )
                    yield event

    async def _probe(self) -> None:
        """Learn whether the server takes ids, tells cached tokens and enforces a constraint."""
        ids = self.tokenizer.encode("The answer is")
        constraint = Constraint("regex", "[5-7]{3}")
        try:
            completion = await self._drain(ids, constraint)
        except EngineUnavailable:
            raise
        except EngineError:
            self.takes_token_ids = False
            completion = await self._drain(ids, constraint)
        if not re.fullmatch(constraint.text, completion.text):
            raise EngineError(
                f"{self.url} answered {completion.text!r} where only {constraint.text} was allowed",
                hint="It ignores `structured_outputs`: use vLLM 0.12 or newer.",
            )

    async def _drain(self, ids: Sequence[int], constraint: Constraint) -> Completion:
        run = _Run(prompt_tokens=len(ids))
        async for event in self._events(self._body(ids, constraint, Sampling(max_tokens=8), None)):
            run.add(event)
        self.reports_cached_tokens = run.told_cached_tokens
        return run.completion(self.url)


@dataclass
class _Run:
    """What one request has produced so far."""

    prompt_tokens: int
    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None

    def add(self, event: dict[str, Any]) -> str:
        """Take in one event and return its text."""
        self.usage = event.get("usage") or self.usage
        if not event.get("choices"):
            return ""
        choice = event["choices"][0]
        if self.first_token is None:
            self.first_token = time.monotonic()
        text: str = choice.get("text") or ""
        self.texts.append(text)
        self.ids.extend(choice.get("token_ids") or ())
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return text

    @property
    def told_cached_tokens(self) -> bool:
        return isinstance(self.usage.get("prompt_tokens_details"), dict)

    def completion(self, url: str) -> Completion:
        if self.finish_reason is None:
            raise EngineUnavailable(f"{url} ended the stream in the middle of an answer")
        now = time.monotonic()
        reason = self.finish_reason
        details = self.usage.get("prompt_tokens_details") or {}
        return Completion(
            text="".join(self.texts),
            token_ids=tuple(self.ids),
            finish_reason="stop" if reason == "stop" else "length" if reason == "length" else "abort",
            prompt_tokens=self.usage.get("prompt_tokens", self.prompt_tokens),
            cached_tokens=details.get("cached_tokens") or 0,
            generated_tokens=self.usage.get("completion_tokens", len(self.ids)),
            ttft_s=(self.first_token or now) - self.started,
            total_s=now - self.started,
        )


class ServerTokenizer:
    """A `completion.Tokenizer` that asks the server; the last 4096 texts are remembered.

    The server recognises special tokens in every text, so spellings of them are cut in two before they are sent.
    """

    def __init__(self, http: httpx.Client, url: str, model: str) -> None:
        self._http = http
        self._url = url
        self._model = model
        self._ids = lru_cache(maxsize=4096)(self._ask)
        self.frame = self._find_frame()

    def encode(self, text: str) -> list[int]:
        """See `completion.Tokenizer`."""
        return [token for piece in self._harmless(text) for token in self._ids(piece)]

    def encode_frame(self, text: str) -> list[int]:
        """See `completion.Tokenizer`."""
        return list(self._ids(text))

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens spelled out."""
        text: str = self._post("/detokenize", {"tokens": ids})["prompt"]
        return text

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def _harmless(self, text: str) -> Iterator[str]:
        """Cut `text` inside every spelling that the server takes for a single token."""
        start = 0
        for match in _MARKER_LIKE.finditer(text):
            if len(self._ids(match.group())) == 1:
                yield text[start : match.start() + 1]
                start = match.start() + 1
        if text[start:]:
            yield text[start:]

    def _ask(self, text: str) -> tuple[int, ...]:
        if not text:
            return ()
        return tuple(self._post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])

    def _find_frame(self) -> ChatFrame:
        reason = ""
        for chat in FRAME_CHATS:
            try:
                asked = {
                    "messages": chat,
                    "add_generation_prompt": True,
                    "chat_template_kwargs": TEMPLATE_ARGUMENTS,
                }
                ids = self._post("/tokenize", asked)["tokens"]
            except EngineUnavailable:
                raise
            except EngineError as error:
                reason = str(error)
                continue
            if frame := cut_frame(self.decode(ids)):
                return frame
        raise no_frame(self._model, reason)

    def _post(self, route: str, body: dict[str, Any]) -> Any:
        with _translated(self._url):
            response = self._http.post(self._url + route, json={"model": self._model} | body)
        if response.is_error:
            raise _refusal(self._url + route, response.status_code, _message(response.text))
        return response.json()


def _tokenizer(url: str, model: str, folder: str | None, client: dict[str, Any]) -> Tokenizer:
    if folder is not None:
        return HfTokenizer.load(folder)
    return ServerTokenizer(httpx.Client(**client), url, model)


async def _served_model(http: httpx.AsyncClient, url: str, wanted: str | None) -> dict[str, Any]:
    with _translated(url):
        response = await http.get(f"{url}/v1/models")
        await _raise_for_status(response)
        served: list[dict[str, Any]] = response.json()["data"]
    for entry in served:
        if wanted is None or entry["id"] == wanted:
            return entry
    names = ", ".join(entry["id"] for entry in served) or "no model"
    raise UsageError(f"{url} doesn't serve {wanted}", hint=f"It serves {names}.")


async def _block_size(http: httpx.AsyncClient, url: str) -> int:
    """Tokens per cache block, from the server's metrics; 0 where they don't say or the cache is off."""
    with _translated(url):
        response = await http.get(f"{url}/metrics")
    labels = re.search(r"^vllm:cache_config_info\{(.*)\}", response.text, re.MULTILINE)
    if response.is_error or labels is None or 'enable_prefix_caching="False"' in labels[1]:
        return 0
    size = re.search(r'\bblock_size="(\d+)"', labels[1])
    return int(size[1]) if size else 0


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn what httpx raises into our errors."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise EngineUnavailable(
            f"{url} did not answer in time ({type(error).__name__})", hint=_START
        ) from error
    except httpx.ConnectError as error:
        raise EngineUnavailable(f"nothing answers at {url}: {error}", hint=_START) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError(f"not a URL: {url}", hint='It looks like "http://localhost:8000".') from error
    except httpx.TransportError as error:
        raise EngineUnavailable(f"{url} broke the connection: {error!r}") from error
    except (json.JSONDecodeError, KeyError) as error:
        raise EngineError(f"{url} doesn't answer like a vLLM server: {error!r}", hint=_START) from error


async def _raise_for_status(response: httpx.Response) -> None:
    if response.is_error:
        await response.aread()
        raise _refusal(str(response.url), response.status_code, _message(response.text))


def _message(text: str) -> str:
    """Dig the sentence out of vLLM's error JSON."""
    try:
        body = json.loads(text)
        return str(body.get("error", body).get("message", text))
    except (ValueError, AttributeError):
        return text[:500]


def _refusal(url: str, status: int, message: str) -> FlowStateError:
    """Choose the error for an HTTP status."""
    said = f"{url} answered {status}: {message}"
    if status in (401, 403):
        return EngineError(said, hint="Pass the server's key as api_key.")
    if status == 400 and ("context length" in message or "max_model_len" in message):
        return PromptTooLong(said)
    if status in (408, 429, 502, 503, 504):
        return EngineUnavailable(said, hint="The server is busy or restarting; try again.")
    if status == 404:
        return EngineError(said, hint="This must be a vLLM server; check the URL and the model's name.")
    return EngineError(said)
