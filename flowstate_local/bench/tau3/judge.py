"""The judge of retail: whether what was said meets each assertion of a task.

It sees what tau2's own judge sees, in the words of tau2-bench v1.0.1 (see LICENSE.tau2-bench). tau2 takes an
empty list of verdicts for a pass and doesn't count them (its issue 554); here there is exactly one verdict for each
assertion, in their order, or the judge has failed, which counts as not passed and is shown.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from flowstate_local.bench.tau3.server import Server
from flowstate_local.errors import EngineError, EngineUnavailable

SYSTEM = """
        TASK
        - You will be given a list of expected outcomes and a conversation that was collected during a test case run.
        - The conversation is between an agent and a customer.
        - Your job is to evaluate whether the agent satisfies each of the expected outcomes.
        - Grade each expected outcome individually.

        FORMAT
        - Your response should be a JSON object with the following fields:
        - `reasoning`: a short explanation for your classification
        - `metExpectation`: `true` if the agent satisfies the expected outcomes, `false` otherwise
        - `expectedOutcome`: repeat the expectation from the input that you are grading
        
        Example response structure:
        {
            "results": [
                {
                    "expectedOutcome": "<one of the expected outcomes from the input>",
                    "reasoning": "<reasoning trace>",
                    "metExpectation": <false or true>,
                }
            ]
        }
        """  # noqa: W293
ATTEMPTS = 3
"""For a server that doesn't answer; a judge that answers badly isn't asked again."""
PAUSE_S = 1.0


@dataclass(frozen=True)
class Verdicts:
    """What a judge said of one conversation."""

    model: str
    met: tuple[bool, ...]
    """One for each assertion, in order; () if the judge failed."""
    reasons: tuple[str, ...]
    failed: str = ""
    """Why there are no verdicts, "" if there are."""
    prompt_tokens: int = 0
    generated_tokens: int = 0

    @property
    def passed(self) -> bool:
        """Whether every assertion is met."""
        return not self.failed and all(self.met)

    def as_json(self) -> dict[str, Any]:
        """For the details of a task."""
        return asdict(self)


async def judge(server: Server, messages: Sequence[Mapping[str, Any]], assertions: Sequence[str]) -> Verdicts:
    """Ask the judge once for all assertions of a task.

    Args:
        server: the model that judges.
        messages: of the conversation, with "role" and "content" (None for a tool call).
        assertions: at least one.

    Raises:
        EngineError: the server didn't answer, or refused; the conversation can be judged later.
    """
    if not assertions:
        raise ValueError("nothing to judge")
    body = {
        "model": server.model,
        "temperature": server.temperature,
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": _question(messages, assertions)},
        ],
        **server.extra_body,
    }
    async with httpx.AsyncClient(timeout=server.timeout_s) as client:
        response = await _post(client, server, body | {"response_format": _form(assertions)})
        if response.status_code in (400, 422):  # a server that knows no response_format
            response = await _post(client, server, body)
    if response.status_code != 200:
        raise EngineError(f"the judge answered with status {response.status_code}: {response.text[:300]}")
    return _read(server, response.json(), assertions)


def _question(messages: Sequence[Mapping[str, Any]], assertions: Sequence[str]) -> str:
    said = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
    return f"""
        conversation:
        {said}
        
        expectedOutcomes:
        {list(assertions)}
        """  # noqa: W293


def _form(assertions: Sequence[str]) -> dict[str, Any]:
    verdict = {
        "type": "object",
        "properties": {
            "expectedOutcome": {"type": "string", "enum": list(assertions)},
            "reasoning": {"type": "string"},
            "metExpectation": {"type": "boolean"},
        },
        "required": ["expectedOutcome", "reasoning", "metExpectation"],
        "additionalProperties": False,
    }
    count = len(assertions)
    schema = {
        "type": "object",
        "properties": {"results": {"type": "array", "items": verdict, "minItems": count, "maxItems": count}},
        "required": ["results"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "verdicts", "schema": schema, "strict": True}}


async def _post(client: httpx.AsyncClient, server: Server, body: Mapping[str, Any]) -> httpx.Response:
    url = server.url.rstrip("/") + "/chat/completions"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            response = await client.post(
                url, json=dict(body), headers={"Authorization": f"Bearer {server.api_key}"}
            )
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            if response.status_code < 500:
                return response
            problem = f"status {response.status_code}"
        if attempt < ATTEMPTS:
            await asyncio.sleep(PAUSE_S * attempt)
    raise EngineUnavailable(f"the judge at {server.url} doesn't answer: {problem}")


def _read(server: Server, reply: Any, assertions: Sequence[str]) -> Verdicts:
    usage = (reply.get("usage") or {}) if isinstance(reply, dict) else {}
    met, reasons, failed = _verdicts(reply, assertions)
    return Verdicts(
        model=server.model,
        met=tuple(met),
        reasons=tuple(reasons),
        failed=failed,
        prompt_tokens=int(usage.get("prompt_tokens") or 0),
        generated_tokens=int(usage.get("completion_tokens") or 0),
    )


def _verdicts(reply: Any, assertions: Sequence[str]) -> tuple[list[bool], list[str], str]:
    try:
        results = json.loads(reply["choices"][0]["message"]["content"])["results"]
        told = [(r["expectedOutcome"], r["metExpectation"], str(r.get("reasoning", ""))) for r in results]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return [], [], f"no verdicts in its reply: {type(error).__name__}: {error}"
    if len(told) != len(assertions):
        return [], [], f"{len(told)} verdicts for {len(assertions)} assertions"
    for place, ((outcome, met, _), assertion) in enumerate(zip(told, assertions, strict=True), start=1):
        if not isinstance(met, bool):
            return [], [], f"verdict {place} is neither true nor false"
        if _plain(outcome) != _plain(assertion):
            return [], [], f"verdict {place} is about something else: {str(outcome)[:80]!r}"
    return [met for _, met, _ in told], [reason for _, _, reason in told], ""


def _plain(text: Any) -> str:
    return " ".join(str(text).split()).casefold()
