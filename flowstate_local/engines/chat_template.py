"""Text to token ids next to the engine: the chat template cut into a frame, and a tokenizer that guards it.

Knows the `transformers` and `tokenizers` libraries, but no engine.
"""

import json
from functools import lru_cache
from typing import Any

from flowstate_local.completion import ChatFrame
from flowstate_local.errors import EngineError, EngineUnavailable

Chat = list[dict[str, str]]

_SYSTEM_MARK = "FLOWSTATE-SYSTEM-TEXT"
_USER_MARK = "FLOWSTATE-USER-TEXT"

FRAME_CHATS: tuple[Chat, ...] = (
    [{"role": "system", "content": _SYSTEM_MARK}, {"role": "user", "content": _USER_MARK}],
    # Templates without a system role: the system text opens the user turn.
    [{"role": "user", "content": f"{_SYSTEM_MARK}\n\n{_USER_MARK}"}],
)
"""Chats to render, best first; `cut_frame` tells whether a rendering will do."""

TEMPLATE_ARGUMENTS: dict[str, Any] = {
    "enable_thinking": False,
    # Some templates (Llama 3, Granite) write today's date into the system turn, which would change the
    # prefix every day; the date belongs to the request.
    "date_string": "as the request says",
}
"""Arguments for every rendering of a chat template. They go over the wire too, so plain values only."""


def cut_frame(rendered: str) -> ChatFrame | None:
    """Cut a rendered `FRAME_CHATS` member at its two marks; None if they aren't there once and in order."""
    if rendered.count(_SYSTEM_MARK) != 1 or rendered.count(_USER_MARK) != 1:
        return None
    system_open, _, rest = rendered.partition(_SYSTEM_MARK)
    user_open, found, reply_open = rest.partition(_USER_MARK)
    return ChatFrame(system_open, user_open, reply_open) if found else None


def no_frame(model: str, reason: str = "") -> EngineError:
    """Build the error for a model whose chat template is missing or shows neither mark."""
    return EngineError(
        f"the chat template of {model} has no place for a system and a user text"
        + (f": {reason}" if reason else ""),
        hint="Use an instruction-tuned model whose folder holds a chat template.",
    )


class HfTokenizer:
    """A `completion.Tokenizer` over the tokenizer of a model folder or hub id.

    Attributes:
        hf: the transformers tokenizer itself, for engines that run on transformers.
        backend: a `tokenizers.Tokenizer` that recognises special tokens in a text.
        frame: the model's chat template, thinking off.
    """

    def __init__(self, hf: Any, model: str) -> None:
        self.hf = hf
        self.frame = _frame_of(hf, model)
        self.backend, self._without_specials = _twins(hf, model)
        self._encode = lru_cache(maxsize=512)(self._encode_uncached)

    @classmethod
    def load(cls, path_or_id: str) -> "HfTokenizer":
        """Read the tokenizer of a model.

        Raises:
            EngineUnavailable: transformers isn't installed, or it can't read the folder.
            EngineError: the chat template doesn't fit, or there's no `tokenizer.json`.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise EngineUnavailable(
                f"transformers can't be imported: {error}",
                hint='pip install "flowstate-local[cpu]" (or [gpu])',
            ) from error
        try:
            hf = AutoTokenizer.from_pretrained(path_or_id)
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"no tokenizer in {path_or_id}: {error}") from error
        return cls(hf, path_or_id)

    def encode(self, text: str) -> list[int]:
        """See `completion.Tokenizer`; the last 512 texts are remembered."""
        return list(self._encode(text))

    def encode_frame(self, text: str) -> list[int]:
        """See `completion.Tokenizer`."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of `ids`, special tokens spelled out."""
        text: str = self.backend.decode(ids, skip_special_tokens=False)
        return text

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._without_specials.encode(text, add_special_tokens=False).ids)


def _frame_of(hf: Any, model: str) -> ChatFrame:
    from jinja2 import TemplateError

    reason = ""
    for chat in FRAME_CHATS:
        try:
            rendered = hf.apply_chat_template(
                chat,
                tokenize=False,
                add_generation_prompt=True,
                strftime_now=lambda _format: TEMPLATE_ARGUMENTS["date_string"],
                **TEMPLATE_ARGUMENTS,
            )
        except (TemplateError, ValueError, TypeError) as error:
            reason = str(error)
            continue
        if frame := cut_frame(rendered):
            return frame
    raise no_frame(model, reason)


def _twins(hf: Any, model: str) -> tuple[Any, Any]:
    """Build two tokenizers with the same vocabulary: one that recognises added tokens in a text, one that doesn't."""
    from tokenizers import Tokenizer

    backend = getattr(hf, "backend_tokenizer", None)
    if backend is None:
        raise EngineError(
            f"{model} has no tokenizer.json", hint="Convert it: its slow tokenizer can't guard turn markers."
        )
    spec = json.loads(backend.to_str())
    spec["truncation"] = spec["padding"] = None
    with_specials = Tokenizer.from_str(json.dumps(spec))
    for token in spec["added_tokens"]:
        # Not every model flags its turn markers as special (DeepSeek's aren't). Runs of blanks stay ordinary tokens.
        token["special"] = token["special"] or bool(token["content"].strip())
    without_specials = Tokenizer.from_str(json.dumps(spec))
    without_specials.encode_special_tokens = True
    return with_specials, without_specials
