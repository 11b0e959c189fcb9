"""A tap on the engine: notes every model call of one episode, and whose share of the engine's time it was.

Batched calls run at the same time, so their times can't be added. Each moment in which the engine works is divided
equally among the calls in flight; the shares of all episodes add up to the time the engine was busy.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any

from flowstate_local.completion import Chunk, Completion, Constraint, Sampling, Tokenizer
from flowstate_local.engines.base import Engine


@dataclass
class Share:
    """Seconds of the engine's time."""

    seconds: float = 0.0


class Meter:
    """Divides the engine's time among those who use it. One for all episodes of a run.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_flight: list[Share] = []
        self._since = clock()
        self.busy_s = 0.0
        """Seconds in which at least one call was in flight."""

    @contextmanager
    def call(self, share: Share) -> Iterator[None]:
        """One call in flight, for which `share` pays."""
        self._settle()
        self._in_flight.append(share)
        try:
            yield
        finally:
            self._settle()
            self._in_flight.remove(share)

    def _settle(self) -> None:
        now = self._clock()
        elapsed, self._since = now - self._since, now
        if self._in_flight:
            self.busy_s += elapsed
        for share in self._in_flight:
            share.seconds += elapsed / len(self._in_flight)


@dataclass
class Proxy:
    """What stands in front of an engine is one, as far as anybody can tell; a subclass says what becomes of a call."""

    engine: Engine

    def __post_init__(self) -> None:
        self.name, self.model, self.profile = self.engine.name, self.engine.model, self.engine.profile
        self.context_window, self.block_size = self.engine.context_window, self.engine.block_size

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the engine behind it."""
        return self.engine.tokenizer

    async def close(self) -> None:
        """The engine belongs to whoever made it."""


@dataclass
class Tap(Proxy):
    """An engine for one episode. See `engines.base.Engine`."""

    meter: Meter
    share: Share = field(default_factory=Share)
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Each model call as JSON. `prompt` is what is new beyond the `shared` tokens that the call before began with, so
    that all prompts can be read, or rebuilt, from the list."""
    _last: list[int] = field(default_factory=list)

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        """See `Engine.stream`."""
        with self.meter.call(self.share):
            async for chunk in self.engine.stream(prompt_ids, constraint, sampling, cache_salt=cache_salt):
                if chunk.completion is not None:
                    self._note(list(prompt_ids), chunk.completion)
                yield chunk

    def _note(self, prompt: list[int], completion: Completion) -> None:
        shared = len(commonprefix([prompt, self._last]))
        self._last = prompt
        self.calls.append(
            {
                "shared": shared,
                "prompt": self.tokenizer.decode(prompt[shared:]),
                "output": completion.text,
                "finish_reason": completion.finish_reason,
                "prompt_tokens": completion.prompt_tokens,
                "cached_tokens": completion.cached_tokens,
                "generated_tokens": completion.generated_tokens,
                "ttft_s": round(completion.ttft_s, 4),
                "total_s": round(completion.total_s, 4),
            }
        )
