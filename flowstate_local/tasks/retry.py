"""What follows from a failure: try again now or later, hand over to the fallback, give up, or ask. Pure."""

import random
from dataclasses import dataclass
from typing import Literal

from flowstate_local.task_events import RetryRule, StepError, StepSpec

DEFAULT_RULES = (
    # Nobody but the operator can know; to try again might do it twice.
    RetryRule(kinds=("unknown_outcome",), then="ask"),
    RetryRule(kinds=("retryable",), then="later", times=3),
    RetryRule(kinds=("*",), then="fallback"),
)
UNDO_RULE = RetryRule(then="later", times=3)
"""To undo is worth some tries, whatever went wrong."""


@dataclass(frozen=True)
class Decision:
    """What is done about an error."""

    then: Literal["retry", "fallback", "give_up", "ask"]
    delay_s: float = 0.0


def decide(spec: StepSpec, error: StepError, key: str) -> Decision:
    """What the step's rules, then the default ones, say about an error.

    Args:
        spec: the step.
        error: how its try number `error.attempt` ended.
        key: its idempotency key; seeds the jitter, so that the same log leads to the same times.
    """
    rule = next(r for r in (*spec.retry, *DEFAULT_RULES) if fits(r, error))
    if rule.then in ("now", "later") and error.attempt < rule.times:
        return Decision("retry", 0.0 if rule.then == "now" else delay_s(rule, error.attempt, key))
    if rule.then == "ask":
        return Decision("ask")
    if rule.then != "give_up" and spec.fallback is not None:
        return Decision("fallback")
    return Decision("give_up")


def decide_undo(error: StepError, key: str) -> Decision:
    """What follows when undoing a step failed."""
    if error.attempt < UNDO_RULE.times:
        return Decision("retry", delay_s(UNDO_RULE, error.attempt, key))
    return Decision("give_up")


def fits(rule: RetryRule, error: StepError) -> bool:
    """Is the rule about errors of this kind?"""
    return "*" in rule.kinds or error.kind in rule.kinds or ("retryable" in rule.kinds and error.retryable)


def delay_s(rule: RetryRule, attempt: int, key: str) -> float:
    """Seconds to wait after the `attempt`-th try: exponential backoff with jitter, at most `max_delay_s`."""
    plain = min(rule.delay_s * rule.factor ** min(attempt - 1, 64), rule.max_delay_s)
    chance = random.Random(f"{key}/{attempt}").uniform(-rule.jitter, rule.jitter)
    return float(plain * (1 + chance))
