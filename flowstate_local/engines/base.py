"""The seam to the model: one Protocol that every engine keeps."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from flowstate_local.completion import Chunk, Completion, Constraint, Profile, Sampling, Tokenizer


class Engine(Protocol):
    """One model, ready to generate. Safe for many concurrent calls on one event loop."""

    name: str
    """"vllm", "server", "transformers", "scripted"."""
    model: str
    """Name or path of the weights."""
    profile: Profile
    context_window: int
    """Tokens, prompt and output together."""
    block_size: int
    """Tokens per prefix-cache block; 0 where there's no prefix cache."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""

    def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """Generate. The texts of all chunks joined are the completion's text; the last chunk carries it.

        Args:
            prompt_ids: the whole prompt as token ids.
            constraint: what the output must match, or None for free text.
            sampling: decoding parameters; max_tokens + len(prompt_ids) must fit the window.
            cache_salt: prefix-cache entries are shared only among calls with the same salt.

        Raises:
            PromptTooLong: prompt and max_tokens don't fit the window.
            EngineUnavailable: the engine died or can't be reached.
            EngineError: the engine refused the call (for example a constraint it can't compile).
        """

    async def close(self) -> None:
        """Free the model. Idempotent; later calls of `stream` raise EngineUnavailable."""


async def complete(
    engine: Engine,
    prompt_ids: Sequence[int],
    constraint: Constraint | None,
    sampling: Sampling,
    *,
    cache_salt: str | None = None,
) -> Completion:
    """Drain a stream and return its completion."""
    completion: Completion | None = None
    async for chunk in engine.stream(prompt_ids, constraint, sampling, cache_salt=cache_salt):
        completion = chunk.completion or completion
    assert completion is not None, "an engine must end its stream with a completion"
    return completion
