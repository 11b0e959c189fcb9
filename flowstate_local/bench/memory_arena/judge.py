"""A judge of equivalence: any OpenAI-compatible server, asked for yes or no. The prompt is ours; the official one isn't published.

As in MemoryArena, the judge sees candidate and reference; whether it also sees the question is a setting, off by default.
"""

from dataclasses import dataclass
from typing import Any, Literal

import httpx

from flowstate_local.errors import EngineError, EngineUnavailable

Parse = Literal["substring", "exact"]
PROMPT = """Do these two answers to the same question say the same? Judge the meaning, not the wording; mathematics may be written in other ways.
{question}Answer to be judged:
{candidate}

Right answer:
{reference}

Say yes or no."""


@dataclass(frozen=True)
class Judge:
    """Who judges, and how its words are read."""

    url: str
    """Up to and including /v1."""
    model: str
    api_key: str = "EMPTY"
    sees_question: bool = False
    parse: Parse = "substring"
    timeout_s: float = 600.0

    async def same(self, question: str, candidate: str, reference: str) -> bool | None:
        """Whether the candidate is right; None if what the judge said is neither yes nor no (parse "exact").

        Raises:
            EngineError: the server can't be reached or refuses; it may be asked again.
        """
        if not candidate.strip():
            return False
        asked = PROMPT.format(
            question=f"Question:\n{question}\n\n" if self.sees_question else "",
            candidate=candidate,
            reference=reference,
        )
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": 0.0,
            "max_tokens": 512,
            "messages": [{"role": "user", "content": asked}],
        }
        # vLLM's way to allow nothing but a choice; other servers ignore the field, or are asked again without it.
        said = await self._ask(body | {"structured_outputs": {"choice": ["yes", "no"]}}) or await self._ask(
            body
        )
        if said is None:
            raise EngineError(f"the judge {self.model} refuses the request")
        said = said.strip().lower()
        if self.parse == "substring":
            return "yes" in said
        return {"yes": True, "no": False}.get(said.strip(" .!\n"))

    async def _ask(self, body: dict[str, Any]) -> str | None:
        headers = {"Authorization": f"Bearer {self.api_key}"}
        try:
            async with httpx.AsyncClient(timeout=self.timeout_s) as client:
                answer = await client.post(
                    f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers
                )
        except httpx.HTTPError as error:
            raise EngineUnavailable(f"the judge at {self.url} can't be reached: {error}") from error
        if answer.status_code in (400, 422):
            return None
        if answer.status_code != 200:
            raise EngineUnavailable(f"the judge at {self.url} answered with status {answer.status_code}")
        try:
            return str(answer.json()["choices"][0]["message"]["content"] or "")
        except (ValueError, KeyError, IndexError, TypeError):
            raise EngineError(
                f"the judge at {self.url} answered with something that is no completion"
            ) from None
