"""What a planner may answer, as a JSON Schema or a regular expression: only actions that are possible now."""

import json
import re
from collections.abc import Sequence

from flowstate_local.completion import Constraint, Profile
from flowstate_local.schema_rules import array, closed, text

MAX_REASON_CHARS = 240
MAX_ALTERNATIVES = 2
ANSWER_TOKENS = 560
"""Tokens that the longest answer needs, if every byte were one: the reason, three actions, and the frame."""

_OPTIONS = {"whitespace_flexible": False, "json_allowed_escapes": 'n\\"'}


def plan_constraint(profile: Profile, actions: Sequence[str], all_actions: Sequence[str]) -> Constraint:
    """The grammar of one plan: a reason, a choice, and up to two alternatives.

    Args:
        profile: which library masks the tokens.
        actions: those that are possible now, such as "run fetch".
        all_actions: those that the workflow will ever have. Under `outlines` an automaton takes seconds to compile,
            so its grammar offers these, and the rules judge.
    """
    if profile == "outlines":
        return Constraint("regex", _regex(all_actions))
    action = {"enum": list(actions)}
    schema = closed(
        {
            "reason": text(1, MAX_REASON_CHARS, MAX_REASON_CHARS, lines=False, blank=False),
            "choice": action,
            "alternatives": array(action, 0, MAX_ALTERNATIVES),
        }
    )
    if profile == "guidance":
        schema = {**schema, "x-guidance": _OPTIONS}
    return Constraint("json", json.dumps(schema, ensure_ascii=False, separators=(",", ":")))


def _regex(actions: Sequence[str]) -> str:
    action = f'"({"|".join(re.escape(a) for a in actions)})"'
    reason = rf'"[A-Za-z0-9 ,.;:()_-]{{1,{MAX_REASON_CHARS}}}"'
    more = rf"({action}(,{action}){{0,{MAX_ALTERNATIVES - 1}}})?"
    return rf'\{{"reason":{reason},"choice":{action},"alternatives":\[{more}\]\}}'
