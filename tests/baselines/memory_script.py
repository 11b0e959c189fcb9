"""What a model says when it is called for the upkeep of a memory, for scripts of methods that have one."""

import json
from typing import Any

from flowstate_local.baselines import reasoning_bank

RULES = {
    "judge": reasoning_bank.JUDGE_RULES,
    "success": reasoning_bank.SUCCESS_RULES,
    "failure": reasoning_bank.FAILURE_RULES,
    "mem0": "## Observation Date",
}


def kind_of(prompt: str) -> str:
    """Which call of a memory this is, or ""."""
    return next((kind for kind, rules in RULES.items() if rules in prompt), "")


def is_for_memory(prompt: str) -> bool:
    return kind_of(prompt) != ""


def verdict(outcome: str = "success") -> str:
    return dump({"reason": "It says so.", "outcome": outcome})


def lessons(*titles: str) -> str:
    items = [
        {"title": title, "description": f"About {title}.", "content": f"Mind {title}."} for title in titles
    ]
    return dump({"items": items})


def facts(*texts: str) -> str:
    memory = [{"id": str(i), "text": text, "attributed_to": "user"} for i, text in enumerate(texts)]
    return dump({"memory": memory})


def memory_reply(prompt: str) -> str:
    """A plain answer to each kind of call."""
    replies = {"judge": verdict(), "mem0": facts("The user likes order.")}
    return replies.get(kind_of(prompt), lessons("order"))


def dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
