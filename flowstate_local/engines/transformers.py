"""transformers as an engine, for machines that vLLM doesn't support. Outlines itself masks the tokens.

One call at a time, on a thread of its own. The keys and values of the last call are kept, so a prompt that
goes on where the last one ended is not computed again.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from flowstate_local.completion import Chunk, Completion, Constraint, Profile, Sampling
from flowstate_local.engines.chat_template import HfTokenizer
from flowstate_local.errors import EngineError, EngineUnavailable, PromptTooLong, UsageError

_INSTALL = 'pip install "flowstate-local[transformers]"'
_PREFILL_CHUNK = 512
"""Prompt tokens per forward pass: bounds memory, and the time until a cancelled call stops."""


class TransformersEngine:
    """An `engines.base.Engine` over a transformers model. Create it with `start`."""

    name = "transformers"
    block_size = 1

    def __init__(
        self, model: Any, tokenizer: HfTokenizer, name: str, masks: "_Masks", context_window: int
    ) -> None:
        self.model = name
        self.profile = masks.profile
        self.tokenizer = tokenizer
        self.context_window = context_window
        self._decoder: _Decoder | None = _Decoder(model, tokenizer, masks)
        self._turn = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        path_or_id: str,
        *,
        profile: Profile = "guidance",
        context_window: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
    ) -> "TransformersEngine":
        """Load a model.

        Args:
            path_or_id: model folder or hub id.
            profile: "guidance" (llguidance) or "outlines" (outlines_core), both through Outlines.
            context_window: tokens, prompt and output together; None: the model's own.
            device: as torch names it; None: cuda, mps or cpu, whichever is there.
            dtype: of the weights; None: bfloat16 where the device computes in it, else float32.

        Raises:
            UsageError: the profile can't be had here.
            EngineUnavailable: torch or transformers isn't installed, or can't load the model.
            EngineError: the model has no usable chat template.
        """
        if profile not in get_args(Profile) or profile == "xgrammar":
            raise UsageError(f"no profile {profile} on transformers", hint='Use "guidance" or "outlines".')
        tokenizer = await asyncio.to_thread(HfTokenizer.load, path_or_id)
        model, masks = await asyncio.to_thread(_load, path_or_id, tokenizer, profile, device, dtype)
        return cls(model, tokenizer, path_or_id, masks, context_window or _window(model))

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """See `engines.base.Engine`. Leaving the stream stops the thread at the next token."""
        started = time.monotonic()
        if not prompt_ids:
            raise UsageError("the prompt is empty")
        if len(prompt_ids) + sampling.max_tokens > self.context_window:
            raise PromptTooLong(
                f"{len(prompt_ids)} prompt tokens + max_tokens {sampling.max_tokens} > window {self.context_window}"
            )
        async with self._turn:
            if self._decoder is None:
                raise EngineUnavailable("the engine is closed", hint="Start another one.")
            run = _Run(list(prompt_ids), constraint, sampling, cache_salt, started)
            async with aclosing(
                _from_thread(lambda emit: self._generate(run, emit), run.cancelled)
            ) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def close(self) -> None:
        """See `engines.base.Engine`. Waits for the call under way."""
        async with self._turn:
            self._decoder = None

    def _generate(self, run: "_Run", emit: Callable[[Chunk], None]) -> None:
        decoder = self._decoder
        assert decoder is not None, "only called while the engine is open"
        try:
            for text in decoder.decode(run):
                emit(Chunk(text))
        except (RuntimeError, ValueError) as error:
            raise EngineError(f"transformers failed: {error}") from error
        emit(Chunk("", run.completion()))


@dataclass
class _Run:
    """One call, and what it has produced so far."""

    prompt: list[int]
    constraint: Constraint | None
    sampling: Sampling
    cache_salt: str | None
    started: float
    cancelled: threading.Event = field(default_factory=threading.Event)
    first_token: float | None = None
    ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: Literal["stop", "length", "abort"] = "length"

    def completion(self) -> Completion:
        now = time.monotonic()
        return Completion(
            text="".join(self.texts),
            token_ids=tuple(self.ids),
            finish_reason=self.finish_reason,
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached_tokens,
            generated_tokens=len(self.ids),
            ttft_s=(self.first_token or now) - self.started,
            total_s=now - self.started,
        )


class _Decoder:
    """The model and the keys and values of its last call. Not thread-safe: one call at a time."""

    def __init__(self, model: Any, tokenizer: HfTokenizer, masks: "_Masks") -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._masks = masks
        self._eos = _eos_ids(model, tokenizer)
        self._cache: Any = None
        self._cached_ids: list[int] = []
        self._cache_salt: str | None = None

    def decode(self, run: _Run) -> Iterator[str]:
        """Sample until the end, `max_tokens` or cancellation; yields the text of each token that completes some."""
        import torch
        from tokenizers.decoders import DecodeStream

        mask = self._masks.processor(run.constraint)
        sample = _sampler(run.sampling, self._model.device)
        text = DecodeStream(skip_special_tokens=True)
        with torch.inference_mode():
            logits = self._prefill(run)
            while not run.cancelled.is_set():
                # Outlines' masks read only the last id; before the first one nothing is generated yet.
                last = torch.tensor([run.ids[-1:] or run.prompt[-1:]], device=logits.device)
                token = sample(logits if mask is None else mask(last, logits))
                run.first_token = run.first_token or time.monotonic()
                run.ids.append(token)
                if token in self._eos:
                    run.finish_reason = "stop"
                    return
                if piece := text.step(self._tokenizer.backend, token):
                    run.texts.append(piece)
                    yield piece
                if len(run.ids) == run.sampling.max_tokens:
                    return
                logits = self._forward([token])
        run.finish_reason = "abort"

    def _prefill(self, run: _Run) -> Any:
        run.cached_tokens = self._reuse(run)
        rest = run.prompt[run.cached_tokens :]
        logits = None
        for start in range(0, len(rest), _PREFILL_CHUNK):
            if not run.cancelled.is_set() or logits is None:
                logits = self._forward(rest[start : start + _PREFILL_CHUNK])
        return logits

    def _reuse(self, run: _Run) -> int:
        """Crop the last call's cache to what this prompt shares with it; returns that many tokens."""
        from transformers import DynamicCache

        shared = 0
        if self._cache is not None and run.cache_salt == self._cache_salt and _croppable(self._cache):
            # At least one token has to be computed, for its logits.
            limit = min(len(self._cached_ids), len(run.prompt) - 1)
            while shared < limit and self._cached_ids[shared] == run.prompt[shared]:
                shared += 1
        if shared:
            if surplus := len(self._cached_ids) - shared:
                self._cache.crop(-surplus)
        else:
            self._cache = DynamicCache(config=self._model.config)
        self._cached_ids = self._cached_ids[:shared]
        self._cache_salt = run.cache_salt
        return shared

    def _forward(self, ids: list[int]) -> Any:
        """Append `ids` to the cache; returns the logits after the last one: float32, shape (1, vocab)."""
        import torch

        cache, self._cache = self._cache, None  # an exception in here leaves no half-written cache behind
        out = self._model(
            input_ids=torch.tensor([ids], device=self._model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        self._cached_ids.extend(ids)
        return out.logits[:, -1, :].float()


class _Masks:
    """Makes Outlines' logits processors. The outlines profile keeps its compiled indexes."""

    def __init__(self, profile: Profile, model: Any, hf: Any) -> None:
        from outlines.backends import LLGuidanceBackend, OutlinesCoreBackend
        from outlines.models.transformers import Transformers

        self.profile = profile
        steerable = Transformers(model, hf)
        self._backend: Any = (LLGuidanceBackend if profile == "guidance" else OutlinesCoreBackend)(steerable)
        self._compiled: dict[Constraint, Any] = {}

    def processor(self, constraint: Constraint | None) -> Any:
        """Build the processor of one call, or None for free text.

        Raises:
            EngineError: the constraint doesn't compile.
        """
        if constraint is None:
            return None
        try:
            if self.profile == "guidance":
                return self._guidance(constraint)
            if constraint not in self._compiled:
                self._compiled[constraint] = self._outlines(constraint)
            processor = self._compiled[constraint]
            processor.reset()
            return processor
        except Exception as error:
            raise EngineError(
                f"Outlines could not compile the {constraint.kind} constraint: {error}"
            ) from error

    def _outlines(self, constraint: Constraint) -> Any:
        if constraint.kind == "regex":
            return self._backend.get_regex_logits_processor(constraint.text)
        return self._backend.get_json_schema_logits_processor(constraint.text, "")

    def _guidance(self, constraint: Constraint) -> Any:
        from llguidance import LLMatcher

        if constraint.kind == "regex":
            processor = self._backend.get_regex_logits_processor(constraint.text)
        else:
            # Otherwise small models fill max_tokens with blanks.
            compact = {"x-guidance": {"whitespace_flexible": False}} | json.loads(constraint.text)
            processor = self._backend.get_json_schema_logits_processor(
                json.dumps(compact, ensure_ascii=False)
            )
        # The processor itself would only warn, and then mask nothing.
        if problem := LLMatcher.validate_grammar(processor.grammar, processor.llg_tokenizer):
            raise ValueError(problem)
        return processor


def _sampler(sampling: Sampling, device: Any) -> Callable[[Any], int]:
    """Draw a token from logits of shape (1, vocab)."""
    import torch

    generator = None
    if sampling.seed is not None:
        generator = torch.Generator(device=device).manual_seed(sampling.seed)

    def sample(logits: Any) -> int:
        if sampling.temperature == 0:
            return int(logits.argmax())
        probabilities, order = torch.sort(
            torch.softmax(logits[0] / sampling.temperature, -1), descending=True
        )
        if sampling.top_p < 1:
            before = torch.cumsum(probabilities, -1) - probabilities
            probabilities = probabilities.masked_fill(before >= sampling.top_p, 0.0)
        return int(order[torch.multinomial(probabilities, 1, generator=generator)])

    return sample


async def _from_thread(
    work: Callable[[Callable[[Chunk], None]], None], cancelled: threading.Event
) -> AsyncGenerator[Chunk]:
    """Run `work` on a thread and yield what it emits; `cancelled` is set when the consumer leaves."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Chunk | None] = asyncio.Queue()

    def emit(chunk: Chunk) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, chunk)

    def body() -> None:
        try:
            work(emit)
        finally:
            loop.call_soon_threadsafe(queue.put_nowait, None)

    thread = asyncio.ensure_future(asyncio.to_thread(body))
    try:
        while (chunk := await queue.get()) is not None:
            yield chunk
        await thread
    finally:
        cancelled.set()
        # The next call may only start when this one has left the cache alone.
        with suppress(Exception):
            await asyncio.shield(thread)


def _load(path: str, tokenizer: HfTokenizer, profile: Profile, device: str | None, dtype: str | None) -> Any:
    try:
        import torch
        import torch._dynamo  # Outlines imports it with its first mask, which would cost the first call seconds.
        import transformers
    except ImportError as error:
        raise EngineUnavailable(
            f"torch and transformers can't be imported: {error}", hint=_INSTALL
        ) from error
    device = device or _device(torch)
    progress_bars = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        auto = transformers.AutoModelForCausalLM
        model = auto.from_pretrained(path, dtype=dtype or _dtype(torch, device)).to(device).eval()
        return model, _Masks(profile, model, tokenizer.hf)
    except Exception as error:
        raise EngineUnavailable(f"transformers can't run {path} here: {error}", hint=_INSTALL) from error
    finally:
        if progress_bars:
            transformers.utils.logging.enable_progress_bar()


def _device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _dtype(torch: Any, device: str) -> str:
    # Without the instructions for it, bfloat16 on a CPU is emulated and several times slower than float32.
    native = device != "cpu" or getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
    return "bfloat16" if native else "float32"


def _window(model: Any) -> int:
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", 4096))


def _eos_ids(model: Any, tokenizer: HfTokenizer) -> set[int]:
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return {i for i in [*ids, tokenizer.hf.eos_token_id] if i is not None}


def _croppable(cache: Any) -> bool:
    """Sliding windows and recurrent states can't be cut back to an earlier token."""
    return all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
