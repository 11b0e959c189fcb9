"""From a conversation that has ended to the scores of its task, and what a second pass of the judge needs.

    reward          1 if every part of the task's basis is met; None where only the judge can tell
    db              1 if the database is as after the gold actions
    communicate     1 if all strings were said that the basis asks for; absent where it doesn't
    assertions      1 if the judge finds all assertions met; None before it has; absent where none are graded
    judged          1 if the judge gave one verdict for each assertion, 0 if it failed; as assertions
    read, write, generic    gold actions of this kind that were made
    write_reached   0 if the user ended while no writing tool had been called though the task needs one
    replied         share of the requests that ended in a reply of the method

A conversation that neither side ended (too many steps or errors) is graded by no part, as in tau2.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from flowstate_local.bench.tau3.dataset import KINDS, TaskFacts, kind_of
from flowstate_local.bench.tau3.judge import Verdicts
from flowstate_local.bench.tau3.simulation import Simulated

STOP = "###STOP###"

Scores = dict[str, float | None]


def scores_of(facts: TaskFacts, simulated: Simulated) -> Scores:
    """All that needs no judge."""
    graded = simulated.graded
    db = graded.db_check is not None and bool(graded.db_check.db_match)
    scores: Scores = {"db": float(db)}
    if "COMMUNICATE" in facts.basis:
        # The checks are absent where there's nothing to say, and where nothing was graded.
        scores["communicate"] = float(
            graded.db_check is not None and all(check.met for check in graded.communicate_checks or ())
        )
    if facts.assertions:
        scores |= {"assertions": None, "judged": None}
    made = Counter(kind_of(c.action.name) for c in graded.action_checks or () if c.action_match)
    scores |= {kind: float(made[kind]) for kind in KINDS}
    scores["write_reached"] = float(not _stopped_before_the_write(facts, simulated.run))
    requests = len(simulated.answers) + simulated.cut
    scores["replied"] = 1 - (simulated.fallbacks + simulated.cut) / requests if requests else 1.0
    return {"reward": reward(scores), **scores}


def reward(scores: Mapping[str, float | None]) -> float | None:
    """The product of the parts that the basis names; a part that failed decides, whatever is unknown."""
    parts = [scores[name] for name in ("db", "communicate", "assertions") if name in scores]
    if any(part == 0 for part in parts):
        return 0.0
    return None if None in parts else 1.0


def with_verdicts(scores: Mapping[str, float | None], verdicts: Verdicts) -> Scores:
    """The scores once the judge has spoken."""
    judged = {
        **scores,
        "assertions": float(verdicts.passed),
        "judged": float(not verdicts.failed),
    }
    return judged | {"reward": reward(judged)}


def detail_of(facts: TaskFacts, simulated: Simulated) -> dict[str, Any]:
    """What happened, as JSON."""
    run = simulated.run
    return {
        "ended": _reason(run),
        "fallbacks": simulated.fallbacks,
        "cut": simulated.cut,
        "tool_errors": sum(m.role == "tool" and bool(m.error) for m in run.messages),
        "user_tokens": _user_tokens(run),
        "assertions": list(facts.assertions),
        "messages": [_plain(message) for message in run.messages],
        "missed": [
            {"name": check.action.name, "arguments": check.action.arguments}
            for check in simulated.graded.action_checks or ()
            if not check.action_match
        ],
    }


def _stopped_before_the_write(facts: TaskFacts, run: Any) -> bool:
    """The commonest fault of a simulated user: it says yes and goodbye in one breath (tau2-bench issue 182).

    An agent that refused a write which it should have made looks the same.
    """
    if not facts.gold["write"] or _reason(run) != "user_stop":
        return False
    called = {call.name for m in run.messages if m.role == "assistant" for call in m.tool_calls or ()}
    last = run.messages[-1].content or ""
    return STOP in last and not any(kind_of(name) == "write" for name in called)


def _reason(run: Any) -> str:
    return str(getattr(run.termination_reason, "value", run.termination_reason))


def _user_tokens(run: Any) -> dict[str, int]:
    usages = [m.usage or {} for m in run.messages if m.role == "user"]
    return {
        "prompt": sum(int(usage.get("prompt_tokens") or 0) for usage in usages),
        "generated": sum(int(usage.get("completion_tokens") or 0) for usage in usages),
    }


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        return plain | {"error": bool(message.error)}
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls or ()]
    return plain | ({"calls": calls} if calls else {})
