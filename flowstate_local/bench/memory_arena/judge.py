"""The judge: yes or no from any OpenAI-compatible server. It never speaks to the agent, and its cost is kept apart."""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import httpx

from flowstate_local.errors import UsageError

logger = logging.getLogger(__name__)

Parse = Literal["substring", "exact"]
"""How a verdict is read. "substring": yes if "yes" occurs anywhere, as officially; "exact": only a plain yes or no."""

TRIES = 3
_WORD = re.compile(r"\W*(yes|no)\W*", re.IGNORECASE)


@dataclass(frozen=True)
class Verdict:
    """What a judge said."""

    yes: bool | None
    """None if there's no verdict yet: `fault` says why, and a second pass may ask again."""
    text: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    fault: str = ""

    def dump(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def spent(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Tokens of dumped verdicts, failed attempts included."""
    known = list(verdicts)
    return {name: sum(one[name] for one in known) for name in ("prompt_tokens", "generated_tokens")}


class Judge(Protocol):
    """Answers yes-or-no questions."""

    @property
    def label(self) -> str:
        """Which judge, and how it was asked; stands beside every figure that rests on it."""

    async def ask(self, prompt: str) -> Verdict:
        """Put a question. Never raises for a server that fails: that is a verdict without an answer."""


class ServerJudge:
    """See `Judge`.

    Args:
        url: such as "http://localhost:8000"; a trailing "/v1" is fine.
        model: name as the server lists it.
        api_key: sent as a bearer token.
        parse: how verdicts are read.
        constrain: let the server allow only yes and no, by vLLM's `structured_outputs`. A server that refuses the
            field with a 4xx status is asked without it from then on, and the label says so.
        temperature: None to leave it to the server, as some models take no other.
        max_tokens: of a verdict; None to leave it to the server. Models that think first need many.
        extra: further fields of each request, such as `{"chat_template_kwargs": {"enable_thinking": False}}`.
        concurrency: questions at a time.
        timeout_s: longest wait for a verdict.
        http: a client to use; it isn't closed.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        parse: Parse = "substring",
        constrain: bool = True,
        temperature: float | None = 0.0,
        max_tokens: int | None = 16,
        extra: Mapping[str, Any] | None = None,
        concurrency: int = 8,
        timeout_s: float = 120.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"a judge's address begins with http:// or https://, unlike {url!r}")
        self.model = model
        self.parse = parse
        self.constrain = constrain
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._body: dict[str, Any] = {"model": model, **(extra or {})}
        if temperature is not None:
            self._body["temperature"] = temperature
        if max_tokens is not None:
            self._body["max_tokens"] = max_tokens
        self._owned = http is None
        self._http = http or httpx.AsyncClient(timeout=timeout_s)
        self._places = asyncio.Semaphore(concurrency)

    @property
    def label(self) -> str:
        """See `Judge.label`."""
        return f"{self.model}, {'constrained' if self.constrain else 'unconstrained'}, {self.parse}"

    async def ask(self, prompt: str) -> Verdict:
        """See `Judge.ask`."""
        asked: list[Verdict] = []
        async with self._places:
            while len(asked) < TRIES and not (asked and asked[-1].yes is not None):
                asked.append(await self._once(prompt))
        return replace(
            asked[-1],
            prompt_tokens=sum(one.prompt_tokens for one in asked),
            generated_tokens=sum(one.generated_tokens for one in asked),
        )

    async def close(self) -> None:
        """Give back the connection."""
        if self._owned:
            await self._http.aclose()

    async def _once(self, prompt: str) -> Verdict:
        body = {**self._body, "messages": [{"role": "user", "content": prompt}]}
        if constrained := self.constrain:
            body["structured_outputs"] = {"choice": ["yes", "no"]}
        try:
            response = await self._http.post(self._url, json=body, headers=self._headers)
        except httpx.HTTPError as error:
            return Verdict(None, fault=f"{type(error).__name__}: {error}")
        if constrained and response.status_code in (400, 422):
            logger.warning("the judge %s takes no structured_outputs; it is asked without", self.model)
            self.constrain = False
            return await self._once(prompt)
        if response.status_code != 200:
            return Verdict(None, fault=f"HTTP {response.status_code}: {response.text[:200]}")
        return self._read(response)

    def _read(self, response: httpx.Response) -> Verdict:
        try:
            reply = response.json()
            text = reply["choices"][0]["message"]["content"] or ""
            usage = reply.get("usage") or {}
            tokens = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            return Verdict(None, fault=f"no chat completion: {type(error).__name__}: {error}")
        yes = read_verdict(text, self.parse)
        return Verdict(yes, text, *tokens, fault="" if yes is not None else "neither yes nor no")


def read_verdict(text: str, parse: Parse) -> bool | None:
    """Yes, no, or None for a text that says neither. A blank one is no verdict; officially it counts as no."""
    if not text.strip():
        return None
    if parse == "substring":
        return "yes" in text.lower()
    word = _WORD.fullmatch(text)
    return word[1].lower() == "yes" if word else None


def equivalence_prompt(candidate: str, reference: str, question: str | None) -> str:
    """Whether an answer says the same as the reference. Our own wording.

    Args:
        candidate: the answer to judge.
        reference: the right one.
        question: what was asked; None to judge the answers alone, as officially.
    """
    asked = f"Problem\n{question}\n\n" if question is not None else ""
    return (
        f"{asked}Reference answer\n{reference}\n\nCandidate answer\n{candidate}\n\n"
        "Is the candidate answer mathematically equivalent to the reference answer, so that it would be marked as "
        "correct? Steps on the way don't matter, only what it comes to. Reply with one word, yes or no."
    )


def attribute_prompt(product: str, attribute: str) -> str:
    """Whether a product has an attribute, by its name. Our own wording."""
    return (
        f"Product\n{product}\n\nAttribute\n{attribute}\n\n"
        "Does the name of the product show that it has this attribute, in the same or in other words? "
        "Reply with one word, yes or no."
    )
