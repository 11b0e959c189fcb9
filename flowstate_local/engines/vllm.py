"""vLLM inside this process: continuous batching, prefix cache, and a grammar on every token.

The only module that imports vllm. vLLM itself starts child processes by spawning, so a script that starts an
engine needs the usual `if __name__ == "__main__":`.
"""

import asyncio
import logging
import os
import time
import uuid
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from flowstate_local.completion import Chunk, Completion, Constraint, Profile, Sampling
from flowstate_local.engines.chat_template import HfTokenizer
from flowstate_local.errors import EngineError, EngineUnavailable, PromptTooLong, UsageError

_INSTALL = 'pip install "flowstate-local[cpu]" on a CPU, "flowstate-local[gpu]" with CUDA'
_GIB = 1024**3

_QUIET = {
    # No telemetry: two names, because vLLM reads both.
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # At WARNING a healthy start on a CPU prints 15 lines that no user can act on.
    "VLLM_LOGGING_LEVEL": "ERROR",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "PYTHONWARNINGS": "ignore",
}


@dataclass
class _Run:
    """What one request has produced so far."""

    prompt_tokens: int
    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: str | None = None

    def add(self, output: Any) -> str:
        """Take in one delta of vLLM's and return its text."""
        piece = output.outputs[0]
        if piece.token_ids and self.first_token is None:
            self.first_token = time.monotonic()
        self.texts.append(piece.text)
        self.ids.extend(piece.token_ids)
        self.cached_tokens = max(self.cached_tokens, output.num_cached_tokens or 0)
        self.finish_reason = piece.finish_reason or self.finish_reason
        text: str = piece.text
        return text

    def completion(self) -> Completion:
        now = time.monotonic()
        reason = self.finish_reason
        return Completion(
            text="".join(self.texts),
            token_ids=tuple(self.ids),
            finish_reason="stop" if reason == "stop" else "length" if reason == "length" else "abort",
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=len(self.ids),
            ttft_s=(self.first_token or now) - self.started,
            total_s=now - self.started,
        )


class VllmEngine:
    """An `engines.base.Engine` over vLLM's AsyncLLM. Create it with `start`."""

    name = "vllm"

    def __init__(self, llm: Any, tokenizer: HfTokenizer, model: str, profile: Profile) -> None:
        self.model = model
        self.profile = profile
        self.tokenizer = tokenizer
        self.context_window: int = llm.model_config.max_model_len
        self.block_size: int = llm.vllm_config.cache_config.block_size
        self._llm: Any | None = llm
        self._running: set[str] = set()
        # A program that forgets to close must not leave vLLM's children behind.
        self._finalizer = weakref.finalize(self, llm.shutdown)

    @classmethod
    async def start(
        cls,
        path_or_id: str | os.PathLike[str],
        *,
        profile: Profile = "guidance",
        context_window: int | None = None,
        kv_space_gib: float | None = None,
        threads: int | None = None,
        max_num_seqs: int | None = None,
        eager: bool | None = None,
        dtype: str = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> "VllmEngine":
        """Load a model; on a small CPU this takes about half a minute.

        Args:
            path_or_id: model folder or hub id.
            profile: the structured-outputs backend, for the whole life of the engine.
            context_window: tokens, prompt and output together; None: as long as the model and the KV space allow.
            kv_space_gib: memory of the prefix cache on a CPU; None: from the memory that's free, unless
                VLLM_CPU_KVCACHE_SPACE is set. On a GPU vLLM decides unless this is given.
            threads: cores to compute on (CPU only); None: all of a small machine, vLLM's choice on a large one,
                unless VLLM_CPU_OMP_THREADS_BIND is set.
            max_num_seqs: requests in one batch; None: 32 on a CPU, vLLM's default on a GPU.
            eager: skip torch.compile; None: True on a CPU (it starts three times as fast), False on a GPU.
            dtype: of the weights, as vLLM names them.
            options: further arguments of vLLM's AsyncEngineArgs.

        Raises:
            UsageError: no such profile.
            EngineUnavailable: vLLM isn't installed or can't run this model here; the message says why.
            EngineError: the model has no usable chat template.
        """
        if profile not in get_args(Profile):
            raise UsageError(f"no such profile: {profile}", hint=f"One of {', '.join(get_args(Profile))}.")
        model = str(path_or_id)
        settings = _Settings(
            model, profile, context_window, kv_space_gib, threads, max_num_seqs, eager, dtype
        )
        tokenizer = await asyncio.to_thread(HfTokenizer.load, model)
        llm = await asyncio.to_thread(_start, settings, dict(options or {}))
        return cls(llm, tokenizer, model, profile)

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """See `engines.base.Engine`. Closing the stream, or cancelling its task, aborts the request in vLLM."""
        llm = self._usable()
        if len(prompt_ids) + sampling.max_tokens > self.context_window:
            raise PromptTooLong(
                f"{len(prompt_ids)} prompt tokens + max_tokens {sampling.max_tokens} > window {self.context_window}"
            )
        run = _Run(prompt_tokens=len(prompt_ids))
        request_id = uuid.uuid4().hex
        self._running.add(request_id)
        try:
            async with aclosing(
                self._deltas(llm, request_id, prompt_ids, constraint, sampling, cache_salt)
            ) as deltas:
                async for output in deltas:
                    text = run.add(output)
                    if run.finish_reason is None:
                        yield Chunk(text)
                    elif run.finish_reason == "error":
                        raise EngineError(
                            _refused(constraint), hint="Its log says more: set VLLM_LOGGING_LEVEL=INFO."
                        )
                    else:
                        yield Chunk(text, run.completion())
        finally:
            self._running.discard(request_id)

    async def close(self) -> None:
        """See `engines.base.Engine`. Calls under way end with finish_reason "abort"."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        if self._running:
            await llm.abort(list(self._running))
        # Before the shutdown, or it logs the end of the engine process as a crash.
        if (handler := llm.output_handler) is not None:
            handler.cancel()
            await asyncio.gather(handler, return_exceptions=True)
        await asyncio.to_thread(self._finalizer)

    def _usable(self) -> Any:
        if self._llm is None:
            raise EngineUnavailable("the engine is closed", hint="Start another one.")
        if self._llm.errored:
            raise EngineUnavailable(f"vLLM died: {self._llm.dead_error}", hint="Start another engine.")
        return self._llm

    async def _deltas(
        self,
        llm: Any,
        request_id: str,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        cache_salt: str | None,
    ) -> AsyncGenerator[Any]:
        """Yield vLLM's own outputs, its exceptions translated."""
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input
        from vllm.v1.engine.exceptions import EngineDeadError

        prompt = tokens_input(list(prompt_ids), cache_salt=cache_salt)
        try:
            async with aclosing(
                llm.generate(prompt, _sampling_params(sampling, constraint), request_id)
            ) as outputs:
                async for output in outputs:
                    yield output
        except EngineDeadError as error:
            raise EngineUnavailable(f"vLLM died: {error}", hint="Start another engine.") from error
        except (VLLMClientError, ValueError) as error:
            raise EngineError(f"vLLM refused the call: {error}") from error
        except Exception as error:
            raise EngineError(f"vLLM failed: {error.__cause__ or error!r}") from error


def _refused(constraint: Constraint | None) -> str:
    if constraint is None:
        return "vLLM ended the request with an error and no reason"
    return f"vLLM could not apply the {constraint.kind} constraint ({len(constraint.text)} characters)"


def _sampling_params(sampling: Sampling, constraint: Constraint | None) -> Any:
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    structured = None if constraint is None else StructuredOutputsParams(**{constraint.kind: constraint.text})
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_tokens,
        # A seed of its own for one call ends the whole engine on the CPU backend of 0.32 ("CPU Generator does not
        # use offset"); there it's left out.
        seed=None if current_platform.is_cpu() else sampling.seed,
        structured_outputs=structured,
        output_kind=RequestOutputKind.DELTA,
    )


@dataclass(frozen=True)
class _Settings:
    model: str
    profile: Profile
    context_window: int | None
    kv_space_gib: float | None
    threads: int | None
    max_num_seqs: int | None
    eager: bool | None
    dtype: str

    def environment(self) -> dict[str, str]:
        """Variables that vLLM reads while it starts, CPU ones included: a GPU ignores them."""
        # Spawned children load our plugin, by which they end when this process is killed; forked ones wouldn't.
        variables = _QUIET | {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
        if self.profile == "outlines":
            # An index for a large vocabulary takes longer to build than vLLM's 5 s.
            variables["VLLM_REGEX_COMPILATION_TIMEOUT_S"] = "120"
            variables["FLOWSTATE_OUTLINES_PLUGIN"] = "1"
        if binding := cpu_binding(self.threads):
            variables["VLLM_CPU_OMP_THREADS_BIND"] = binding
        chosen = {name: value for name, value in variables.items() if name not in os.environ}
        return chosen | {"FLOWSTATE_ENGINE_OWNER": str(os.getpid())}

    def engine_args(self) -> dict[str, Any]:
        """Arguments for AsyncEngineArgs on this machine."""
        from vllm.platforms import current_platform

        backend: dict[str, Any] = {"backend": self.profile}
        if self.profile != "outlines":
            # Otherwise small models fill max_tokens with blanks.
            backend["disable_any_whitespace"] = True
        args: dict[str, Any] = {
            "model": self.model,
            "dtype": self.dtype,
            "max_model_len": self.context_window or -1,
            "enable_prefix_caching": True,
            "structured_outputs_config": backend,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        if self.eager is not None:
            args["enforce_eager"] = self.eager
        if self.max_num_seqs is not None:
            args["max_num_seqs"] = self.max_num_seqs
        if self.kv_space_gib is not None:
            args["kv_cache_memory_bytes"] = int(self.kv_space_gib * _GIB)
        return self._cpu_defaults() | args if current_platform.is_cpu() else args

    def _cpu_defaults(self) -> dict[str, Any]:
        return {
            # vLLM's 128 keeps a prompt from hitting the cache until its prefix is that long; 32 is the least.
            "block_size": 32,
            "enforce_eager": True,
            "max_num_seqs": 32,
            # VLLM_CPU_KVCACHE_SPACE, where set, wins inside vLLM.
            "kv_cache_memory_bytes": int(self._default_kv_space_gib() * _GIB),
        }

    def _default_kv_space_gib(self) -> float:
        """A quarter of what stays free beside the weights, from 0.5 to 4 GiB (150k tokens at 28 kB each).

        Left alone vLLM takes 92 % of the machine's memory, and doesn't start if that isn't free.
        """
        from vllm.utils.cpu_resource_utils import get_memory_node_info

        weights = sum(file.stat().st_size for file in Path(self.model).glob("*.safetensors"))
        available: int = get_memory_node_info(0).available_memory
        free = available - 1.3 * weights - 1.5 * _GIB
        return min(max(free / 4 / _GIB, 0.5), 4.0)


def cpu_binding(threads: int | None) -> str | None:
    """Cores for vLLM's compute threads, such as "0,1"; None leaves the choice to vLLM.

    vLLM's own choice keeps a core free for its scheduler, which halves a machine of two: 10 tokens/s on both
    cores against 5 on one, measured with an int8 model of 1.5B parameters.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if threads is None and len(cores) > 4:
        return None
    return ",".join(str(core) for core in cores[:threads])


def _start(settings: _Settings, options: dict[str, Any]) -> Any:
    """Import vLLM and start it; blocks until the weights are loaded."""
    with _environment(settings.environment()):
        try:
            llm_class, args_class = _vllm_classes()
        except (ImportError, RuntimeError, OSError) as error:
            # RuntimeError: torchvision or torchaudio of another build than torch.
            raise EngineUnavailable(f"vLLM can't be imported: {error}", hint=_INSTALL) from error
        try:
            return llm_class.from_engine_args(args_class(**settings.engine_args() | options))
        except Exception as error:
            raise EngineUnavailable(
                f"vLLM can't run {settings.model} here: {error}",
                hint="VLLM_LOGGING_LEVEL=INFO shows its log; a smaller context_window or kv_space_gib needs less memory.",
            ) from error


def _vllm_classes() -> tuple[Any, Any]:
    # vLLM logs about Triton before it configures its logging; without a handler that ends up on stderr.
    logging.getLogger("vllm").addHandler(logging.NullHandler())
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    class OwnedLLM(AsyncLLM):  # type: ignore[misc]  # vllm is untyped here
        """AsyncLLM that is shut down by its owner.

        AsyncLLM's own `__del__` runs when the interpreter has already taken its module apart, and prints a
        TypeError at every exit.
        """

        def __del__(self) -> None:
            pass

    return OwnedLLM, AsyncEngineArgs


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set `variables` while vLLM starts, then restore everything.

    vLLM also sets LD_PRELOAD for its workers; tools that the user starts later must not inherit that.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
