"""The three real matchers over a vocabulary of single bytes, for tests of grammars without a model."""

import json
import random
from collections.abc import Sequence
from typing import Any, Protocol

import llguidance
import llguidance.numpy
import numpy as np

EOS = 256


class _Bytes:
    eos_token_id = EOS
    bos_token_id = None
    tokens = [bytes([code]) for code in range(256)] + [b"<end>"]
    special_token_ids = [EOS]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


class Matcher(Protocol):
    def accepts(self, text: str) -> bool:
        """Whether `text` is a whole sentence of the grammar."""


class Guidance:
    """llguidance as vLLM drives it."""

    def __init__(self, schema: str | dict[str, Any]) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        self._grammar = llguidance.LLMatcher.grammar_from_json_schema(
            text, defaults={"whitespace_flexible": False}
        )
        self._matcher = llguidance.LLMatcher(TOKENIZER, self._grammar)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def accepts(self, text: str) -> bool:
        self._matcher.reset()
        data = list(text.encode())
        return self._matcher.try_consume_tokens(data) == len(data) and self._matcher.is_accepting()

    def allowed(self) -> Sequence[int]:
        mask = llguidance.numpy.allocate_token_bitmask(1, EOS + 1)
        llguidance.numpy.fill_next_token_bitmask(self._matcher, mask, 0)
        bits = np.unpackbits(mask.view(np.uint8).ravel(), bitorder="little")[: EOS + 1]
        return [int(token) for token in np.flatnonzero(bits)]

    def walk(self, rng: random.Random, limit: int, *, adverse: bool) -> bytes:
        """Sample a sentence byte by byte; `adverse`: never close what can go on, and prefer wide characters."""
        self._matcher.reset()
        said = bytearray()
        while True:
            tokens = self.allowed()
            token = rng.choice(_longest(tokens, rng) if adverse else tokens)
            if token == EOS:
                return bytes(said)
            said.append(token)
            assert self._matcher.consume_token(token)
            assert len(said) <= limit, f"still open after {limit} bytes: {bytes(said[:200])!r}"


def _longest(tokens: Sequence[int], rng: random.Random) -> Sequence[int]:
    open_ended = [t for t in tokens if t not in (EOS, *b'"]}')] or [t for t in tokens if t != EOS] or tokens
    wide = [t for t in open_ended if t >= 0xC2]
    escaped = [t for t in open_ended if t == ord("\\")]
    if wide and rng.random() < 0.7:
        return wide
    return escaped if escaped and rng.random() < 0.3 else open_ended


class Xgrammar:
    """xgrammar as vLLM drives it."""

    def __init__(self, schema: str | dict[str, Any]) -> None:
        import xgrammar

        info = xgrammar.TokenizerInfo(_Bytes.tokens, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[EOS])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        self._compiled = compiler.compile_json_schema(text, any_whitespace=False, separators=(",", ":"))
        self._matcher = xgrammar.GrammarMatcher

    def accepts(self, text: str) -> bool:
        matcher = self._matcher(self._compiled)
        return all(matcher.accept_token(code) for code in text.encode()) and bool(matcher.accept_token(EOS))


class Outlines:
    """outlines_core over bytes."""

    def __init__(self, regex: str) -> None:
        from outlines_core import Index, Vocabulary

        vocabulary = Vocabulary(EOS, {bytes([code]): [code] for code in range(256)})
        self._index = Index(regex, vocabulary)

    def accepts(self, text: str) -> bool:
        state = self._index.get_initial_state()
        for code in text.encode():
            state = self._index.get_next_state(state, code)
            if state is None:
                return False
        return bool(self._index.is_final_state(state))
