"""BM25: earlier requests are cut into passages, and the ones that share words with the request are put before it."""

import bm25s

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.baselines.react import React, Transcript

PASSAGE_CHARS = 800
"""Passages are cut at line ends near this length, as MemoryArena's retrieval baseline does with its own size."""


class Bm25(React):
    """The best passages by BM25 (bm25s, its defaults), as many as the budget of memory holds, in order of time."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._passages: list[str] = []

    async def recall(self, text: str, usage: list[Usage]) -> list[int]:
        """Passages that share words with the request."""
        if not self._passages:
            return []
        retriever = bm25s.BM25()
        retriever.index(bm25s.tokenize(self._passages, show_progress=False), show_progress=False)
        query = bm25s.tokenize(text, show_progress=False)
        found, scores = retriever.retrieve(query, k=len(self._passages), show_progress=False)
        ranked = [int(i) for i, score in zip(found[0], scores[0], strict=True) if score > 0]
        return self._fitted(ranked)

    def _fitted(self, ranked: list[int]) -> list[int]:
        """The first of them that fit, as token ids in order of time."""
        encode = self.engine.tokenizer.encode
        chosen: dict[int, list[int]] = {}
        left = self.budget.memory_tokens
        for place in ranked:
            ids = encode(f"{self._passages[place]}\n")
            if len(ids) <= left:
                chosen[place] = ids
                left -= len(ids)
        head = encode("From earlier requests\n") if chosen else []
        return head + [i for place in sorted(chosen) for i in chosen[place]]

    async def remember(self, transcript: Transcript, answer: Answer, usage: list[Usage]) -> None:
        """Cut the request into passages."""
        passage = ""
        for line in transcript.text.splitlines():
            if passage and len(passage) + len(line) > PASSAGE_CHARS:
                self._passages.append(f"[request {transcript.number}] {passage}")
                passage = ""
            passage += ("\n" if passage else "") + line
        self._passages.append(f"[request {transcript.number}] {passage}")
