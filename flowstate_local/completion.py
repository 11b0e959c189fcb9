"""What crosses the seam to a model: sampling, constraints, completions, tokens. Pure values and one Protocol."""

from dataclasses import dataclass
from typing import Literal, Protocol

Profile = Literal["guidance", "outlines", "xgrammar"]
"""Which library masks the tokens. One per engine, always named, never "auto" (facts: auto drops constraints)."""


@dataclass(frozen=True)
class Sampling:
    """Decoding parameters; the defaults are the paper's preset (temperature 0.1, top_p 1.0, thinking off)."""

    temperature: float = 0.1
    top_p: float = 1.0
    max_tokens: int = 32_768
    """Upper bound of generated tokens; the caller caps it by what the window leaves."""
    seed: int | None = None
    """For repeatable sampling; vLLM's CPU backend has none, so it's ignored there."""


@dataclass(frozen=True)
class Constraint:
    """What the output must match: a JSON Schema (as canonical JSON text) or a regular expression."""

    kind: Literal["json", "regex"]
    text: str


@dataclass(frozen=True)
class Completion:
    """One finished generation. `text` is verbatim; whether it is a step is for the caller to judge."""

    text: str
    token_ids: tuple[int, ...]
    """Generated ids as the engine sampled them; empty where a server doesn't tell them."""
    finish_reason: Literal["stop", "length", "error", "abort"]
    """As the engine says. Anything but "stop" means that nothing of it may be committed."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens served from the prefix cache."""
    generated_tokens: int
    ttft_s: float
    """Seconds from the call to the first token."""
    total_s: float


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: new text, and on the last one the completion."""

    text: str
    completion: Completion | None = None


@dataclass(frozen=True)
class ChatFrame:
    """The model's chat template, cut where our segments go.

    prompt text = system_open + [1..3] + user_open + [4..7] + reply_open
    """

    system_open: str
    user_open: str
    reply_open: str


class Tokenizer(Protocol):
    """Text to token ids, one segment at a time. Deterministic: the same text gives the same ids, always."""

    frame: ChatFrame

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone: no BOS or other tokens added; special tokens spelled in `text` are recognised
        only in frame texts (`encode_frame`), so that a user can't write a turn marker.
        """

    def encode_frame(self, text: str) -> list[int]:
        """Ids of a piece of the frame, special tokens recognised."""

    def decode(self, ids: list[int]) -> str:
        """The text of `ids`, special tokens spelled out: what the model was given, for people and traces."""
