"""The plans of a run as the official travel scorer reads them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any


def submission(details: Iterable[Mapping[str, Any]], *, strict_missing: bool = False) -> str:
    """One JSON line per group: `{id, persons: [{person_idx, plan: [{days, slots...}]}]}`.

    Args:
        details: `Played.detail` of each group, of one trial each.
        strict_missing: submit an empty plan for travellers without one, so that the official scorer, which skips
            who isn't submitted, counts them as failed.
    """
    lines = []
    for detail in details:
        persons = [
            {"person_idx": person["person_idx"], "plan": person["plan"]}
            for person in detail["persons"]
            if person["plan"] or strict_missing
        ]
        lines.append(json.dumps({"id": detail["id"], "persons": persons}, ensure_ascii=False) + "\n")
    return "".join(lines)
