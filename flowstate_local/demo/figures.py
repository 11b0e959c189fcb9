"""The figures of a set of plays, in the form every benchmark ends with."""

from collections.abc import Sequence
from typing import Any

from flowstate_local.demo.play import Audit, Play


def total(plays: Sequence[Play]) -> Audit:
    """The audits of all plays, summed."""
    audit = Audit()
    for one in plays:
        audit.add(one.audit)
    return audit


def figures(plays: Sequence[Play], *, elapsed_s: float) -> dict[str, Any]:
    """`{"name": "demo", "figures": {FIGURE: {"value": x, "unit": u}}}`."""
    audit = total(plays)
    values: dict[str, tuple[float, str]] = {
        "variants": (len(plays), "plays"),
        "right": (sum(play.verdict.right for play in plays), "plays"),
        "opened_decision": (sum(play.verdict.opened_decision for play in plays), "plays"),
        "opened_evidence": (sum(play.verdict.opened_evidence for play in plays), "plays"),
        "calculated": (sum(play.verdict.calculated for play in plays), "plays"),
        "steps": (audit.steps, "steps"),
        "prompt_tokens": (audit.prompt_tokens, "tokens"),
        "cached_tokens": (audit.cached_tokens, "tokens"),
        "cached_share_later_steps": (round(audit.cached_share, 4), "share"),
        "generated_tokens": (audit.generated_tokens, "tokens"),
        "unparsable": (audit.unparsable, "outputs"),
        "cut_off": (audit.cut_off, "outputs"),
        "refused": (audit.refused, "operations"),
        "elapsed": (round(elapsed_s, 2), "s"),
    }
    return {
        "name": "demo",
        "figures": {name: {"value": value, "unit": unit} for name, (value, unit) in values.items()},
    }
