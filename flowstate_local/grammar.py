"""What the model may say at one step, as a JSON Schema or a regular expression that the engine masks with.

Under the profiles `guidance` and `xgrammar` every step gets its own grammar: the ids it may open, cite and refer to
are listed, and every text, list and number is bounded so that the longest sentence fits `max_tokens` even if the
tokenizer spends a token on each byte. Such a step can't be cut off and can't name a thing that doesn't exist.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from weakref import WeakKeyDictionary

from flowstate_local.completion import Constraint, Profile
from flowstate_local.errors import GrammarError
from flowstate_local.nodes import ID_LETTER, EvidenceId, NodeId
from flowstate_local.schema_rules import Limits, Schema, any_of, array, bounded, closed, text, worst_bytes
from flowstate_local.tools import Tool, Toolbox

MAX_FOCUS = 4
MAX_MESSAGE_CHARS = 4_000
MARGIN = 8
"""Tokens kept back: one for the end of the sequence, the rest for engines that count a stop token or two more."""
MIN_MESSAGE_BYTES = 24

_X_GUIDANCE = {"whitespace_flexible": False, "json_allowed_escapes": 'n\\"'}
"""Options that llguidance reads from the schema: no blanks between tokens, and no escape longer than two bytes."""


@dataclass(frozen=True)
class StepFacts:
    """What the loop knows before a step; the grammar lets the model name nothing else."""

    openable: Sequence[str] = ()
    """Ids that state_focus may name: nodes, raw results and their pages, folded requests, none of them open yet."""
    resolvable: Sequence[NodeId] = ()
    """Ids that refs may target."""
    evidence: Sequence[EvidenceId] = ()
    """Raw results that a node may cite."""
    own: Sequence[NodeId] = ()
    """Nodes made in this request, which update and remove may target."""
    next_number: int = 1
    """Number of the first free node id."""
    may_note: bool = True
    """Whether a delta alone is allowed now."""
    may_look: bool = True
    may_act: bool = True
    may_reply: bool = True
    defer: Literal["strict", "trust"] = "strict"


def step_constraint(profile: Profile, toolbox: Toolbox, facts: StepFacts, max_tokens: int) -> Constraint:
    """The grammar of one step.

    Args:
        profile: which library masks the tokens.
        toolbox: the tools of the request.
        facts: ids and guards of this step.
        max_tokens: tokens the engine will generate at most, the one that ends the sequence included.

    Raises:
        GrammarError: a tool's shortest call or every shape of a step needs more than `max_tokens`; or the profile
            can't hold the tools.
    """
    return Constraint("json", _compact(_Step(profile, toolbox, facts, max_tokens).schema()))


@dataclass(frozen=True)
class _Rung:
    """How much a state delta may say. Text in bytes: a quarter of it in characters is always possible."""

    ops: int
    summary: int
    content: int = 0
    slots: int = 0
    slot_value: int = 0
    refs: int = 1
    evidence: int = 1
    changes: bool = False
    """Whether update and remove are offered."""
    dated: bool = False
    """Whether valid_until and confidence are offered."""


_RUNGS = (
    _Rung(
        ops=6,
        summary=1_200,
        content=2_400,
        slots=4,
        slot_value=240,
        refs=6,
        evidence=6,
        changes=True,
        dated=True,
    ),
    _Rung(
        ops=4,
        summary=800,
        content=1_600,
        slots=3,
        slot_value=160,
        refs=4,
        evidence=4,
        changes=True,
        dated=True,
    ),
    _Rung(
        ops=4, summary=480, content=640, slots=2, slot_value=80, refs=4, evidence=4, changes=True, dated=True
    ),
    _Rung(
        ops=3, summary=480, content=240, slots=2, slot_value=40, refs=3, evidence=3, changes=True, dated=True
    ),
    _Rung(ops=3, summary=240, slots=1, slot_value=40, refs=2, evidence=2, changes=True),
    _Rung(ops=2, summary=240, slots=1, slot_value=32, refs=2, evidence=2, changes=True),
    _Rung(ops=2, summary=160, refs=2, changes=True),
    _Rung(ops=1, summary=140, refs=2, changes=True),
    _Rung(ops=1, summary=100),
    _Rung(ops=1, summary=60),
    _Rung(ops=1, summary=32, refs=0, evidence=0),
)
_CALL_RUNGS = (
    (2, Limits(text_bytes=4_000, items=16)),
    (2, Limits(text_bytes=1_200, items=12)),
    (2, Limits(text_bytes=480, items=8)),
    (2, Limits(text_bytes=240, items=6)),
    (2, Limits(text_bytes=120, items=4)),
    (1, Limits(text_bytes=120, items=4)),
    (1, Limits(text_bytes=64, items=3)),
    (1, Limits(text_bytes=32, items=2)),
    (1, Limits(text_bytes=16, items=1)),
    (1, Limits(text_bytes=8, items=1)),
)
"""Most calls of one step, and the bounds of their arguments."""

_SLOT_NAME: Schema = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,19}$"}
_RELATION: Schema = {"enum": ["supports", "derives", "follows", "supersedes"]}
_EMPTY: Schema = {"type": "array", "maxItems": 0}


@dataclass(frozen=True)
class _Calls:
    """Tool calls under one rung: schema of the array's items, and the longest call in bytes."""

    most: int
    item: Schema
    item_bytes: int


class _Step:
    def __init__(self, profile: Profile, toolbox: Toolbox, facts: StepFacts, max_tokens: int) -> None:
        self.profile = profile
        self.toolbox = toolbox
        self.facts = facts
        self.room = max_tokens - MARGIN
        self.defs: dict[str, Schema] = {}
        self.longest_target = max(map(len, facts.resolvable), default=0)
        self.longest_evidence = max(map(len, facts.evidence), default=0)
        self.longest_own = max(map(len, facts.own), default=0)
        self.skeleton = len('{"state_focus":,"state_delta":,"tool_calls":,"assistant_message":}')

    def schema(self) -> Schema:
        shapes = self.strict() if self.facts.defer == "strict" else self.trust()
        if not shapes:
            raise GrammarError(
                f"no shape of a step fits {self.room + MARGIN} tokens, or the guards left none",
                keyword="max_tokens",
                hint="Raise max_tokens; 200 is enough for a short reply.",
            )
        schema = {**any_of(shapes)}
        if self.defs:
            schema["$defs"] = self.defs
        if self.profile == "guidance":
            schema["x-guidance"] = _X_GUIDANCE
        return schema

    # Each shape: what may be in its four parts. `self.room` is shared by what one shape can say at once.

    def strict(self) -> list[Schema]:
        facts, shapes = self.facts, []
        focus = self.focus() if facts.may_look else None
        if focus is not None and (delta := self.delta(2 + self.size(focus) + 2)) is not None:
            shapes.append(_step(focus, delta, _EMPTY, _SILENT))
        if facts.may_act and len(self.toolbox):
            shapes.append(self.act(2, 2, _SILENT))
        if facts.may_reply and (reply := self.reply(_EMPTY, _EMPTY)):
            shapes.append(reply)
        if facts.may_note and (delta := self.delta(6, least=1)) is not None:
            shapes.append(_step(_EMPTY, delta, _EMPTY, _SILENT))
        return shapes

    def trust(self) -> list[Schema]:
        """Everything together, as disjoint cases by the first part that says something."""
        facts = self.facts
        focus = self.focus() if facts.may_look else None
        calls = None
        if facts.may_act and len(self.toolbox):
            calls = self.calls(self.room // 3)
        looks = 2 + (self.size(focus) if focus else 0)
        acts = 2 if calls is None else self.size(calls)
        rest = self.room - self.skeleton - looks - acts
        rung = self.rung(rest - MIN_MESSAGE_BYTES)
        delta = self.delta_of(rung, 0)
        spare = rest - self.delta_bytes(rung) - 2
        said = text(1, MAX_MESSAGE_CHARS, spare, blank=False) if spare >= 4 and facts.may_reply else None
        maybe_said = any_of([_SILENT, said]) if said else _SILENT
        maybe_calls = any_of([_EMPTY, calls]) if calls else _EMPTY
        shapes = []
        if focus is not None:
            shapes.append(_step(focus, delta, maybe_calls, maybe_said))
        if calls is not None:
            shapes.append(_step(_EMPTY, delta, calls, maybe_said))
        if said is not None:
            shapes.append(_step(_EMPTY, delta, _EMPTY, said))
        if facts.may_note and rung is not None:
            shapes.append(_step(_EMPTY, self.delta_of(rung, 1), _EMPTY, _SILENT))
        return shapes if rest >= 2 else []

    def act(self, focus_bytes: int, message_bytes: int, message: Schema) -> Schema:
        spare = self.room - self.skeleton - focus_bytes - message_bytes
        rung = self.rung(spare // 2)
        delta = self.delta_of(rung, 0)
        while True:
            try:
                calls = self.calls(spare - self.delta_bytes(rung))
            except GrammarError:
                if rung is None:
                    raise
                rung = self.smaller(rung)
                delta = self.delta_of(rung, 0)
                continue
            return _step(_EMPTY, delta, calls, message)

    def reply(self, focus: Schema, calls: Schema) -> Schema | None:
        spare = self.room - self.skeleton - 4 - 2
        rung = self.rung(spare // 2)
        delta = self.delta_of(rung, 0)
        spare -= self.delta_bytes(rung)
        if spare < MIN_MESSAGE_BYTES:
            return None
        return _step(focus, delta, calls, text(1, MAX_MESSAGE_CHARS, spare, blank=False))

    def size(self, schema: Schema) -> int:
        return worst_bytes(schema, self.defs)

    # --- focus

    def focus(self) -> Schema | None:
        if not self.facts.openable:
            return None
        longest = max(map(_quoted, self.facts.openable))
        most = min(MAX_FOCUS, (self.room - self.skeleton - 6 - 2) // (longest + 1))
        if most < 1:
            return None
        self.defs["open"] = {"enum": list(self.facts.openable)}
        return array({"$ref": "#/$defs/open"}, 1, most)

    # --- delta

    def rung(self, room: int) -> _Rung | None:
        """The largest rung whose longest delta fits `room` bytes."""
        return next((rung for rung in _RUNGS if self.delta_bytes(rung) <= room), None)

    def smaller(self, rung: _Rung) -> _Rung | None:
        after = _RUNGS.index(rung) + 1
        return _RUNGS[after] if after < len(_RUNGS) else None

    def delta(self, other: int, *, least: int = 0) -> Schema | None:
        """The largest delta beside `other` bytes; None if `least` operations don't fit."""
        rung = self.rung((self.room - self.skeleton - other) // (1 if least else 2))
        if rung is None and self.room < self.skeleton + other + 2:
            return None
        return None if rung is None and least else self.delta_of(rung, least)

    def delta_of(self, rung: _Rung | None, least: int) -> Schema:
        if rung is None:
            return _EMPTY
        key = f"ops{_RUNGS.index(rung)}"
        if f"{key}_0" not in self.defs:
            self.define(rung, key)
        items = [{"$ref": f"#/$defs/{key}_{i}"} for i in range(rung.ops)]
        return {"type": "array", "prefixItems": items, "minItems": least, "maxItems": rung.ops}

    def define(self, rung: _Rung, key: str) -> None:
        """One definition per place in the delta: the n-th operation may only take the n-th free id."""
        tail = self.tail(rung, key)
        changes = self.changes(rung, tail)
        for place in range(rung.ops):
            number = self.facts.next_number + place
            adds = [
                closed(
                    {"op": _ADD, "type": {"enum": [kind]}, "id": {"enum": [f"{letter}{number}"]}, **tail},
                    ["op", "type", "id", *(name for name in tail if name in _REQUIRED)],
                )
                for kind, letter in ID_LETTER.items()
            ]
            self.defs[f"{key}_{place}"] = {"anyOf": adds + changes}

    def tail(self, rung: _Rung, key: str) -> dict[str, Schema]:
        """What follows the id of an operation, shared by all of them."""
        self.defs[f"{key}_summary"] = text(1, 1_000, rung.summary, lines=False, blank=False)
        tail: dict[str, Schema] = {"summary": {"$ref": f"#/$defs/{key}_summary"}}
        if rung.content:
            self.defs[f"{key}_content"] = text(0, 100_000, rung.content)
            tail["content"] = {"$ref": f"#/$defs/{key}_content"}
        if rung.slots:
            slot = closed({"name": _SLOT_NAME, "value": text(0, 256, rung.slot_value, lines=False)})
            self.defs[f"{key}_slots"] = array(slot, 0, rung.slots)
            tail["slots"] = {"$ref": f"#/$defs/{key}_slots"}
        if rung.refs and self.facts.resolvable:
            self.defs["node"] = {"enum": list(self.facts.resolvable)}
            ref = closed({"relation": _RELATION, "target": {"$ref": "#/$defs/node"}})
            self.defs[f"{key}_refs"] = array(ref, 0, rung.refs)
            tail["refs"] = {"$ref": f"#/$defs/{key}_refs"}
        else:
            tail["refs"] = _EMPTY
        if rung.evidence and self.facts.evidence:
            self.defs["raw"] = {"enum": list(self.facts.evidence)}
            tail["evidence"] = array({"$ref": "#/$defs/raw"}, 0, rung.evidence)
        else:
            tail["evidence"] = _EMPTY
        if rung.dated:
            tail["valid_until"] = {"type": "string", "format": "date"}
            tail["confidence"] = {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01}
        return tail

    def changes(self, rung: _Rung, tail: Mapping[str, Schema]) -> list[Schema]:
        if not rung.changes or not self.facts.own:
            return []
        self.defs["own"] = {"enum": list(self.facts.own)}
        own: Schema = {"$ref": "#/$defs/own"}
        update = closed({"op": {"enum": ["update"]}, "id": own, **tail}, ["op", "id", "summary"])
        return [update, closed({"op": {"enum": ["remove"]}, "id": own})]

    def delta_bytes(self, rung: _Rung | None) -> int:
        """What `worst_bytes` would say of the rung's delta, without building it."""
        if rung is None:
            return 2
        facts = self.facts
        ref = 27 + 10 + 2 + self.longest_target  # {"relation":"…","target":"…"}
        cited = 3 + self.longest_evidence
        number = len(str(facts.next_number + rung.ops))
        head = max(
            len('{"op":"add","type":"preference","id":"p"') + number, 24 + max(map(len, facts.own), default=0)
        )
        size = head + len(',"summary":""') + rung.summary + len(',"refs":[],"evidence":[]}')
        size += (len(',"content":""') + rung.content) if rung.content else 0
        size += (len(',"slots":[]') + rung.slots * (27 + 20 + rung.slot_value)) if rung.slots else 0
        size += rung.refs * ref if facts.resolvable else 0
        size += rung.evidence * cited if facts.evidence else 0
        size += len(',"valid_until":"2026-01-01","confidence":0.01') if rung.dated else 0
        return 2 + rung.ops * (size + 1)

    # --- calls

    def calls(self, room: int) -> Schema:
        """The largest tool calls that fit `room` bytes.

        Raises:
            GrammarError: even the shortest call of some tool doesn't fit.
        """
        error: GrammarError | None = None
        for index in range(len(_CALL_RUNGS)):
            made = _calls(self.profile, self.toolbox, index)
            if isinstance(made, GrammarError):
                error = made
            elif 2 + made.most * (made.item_bytes + 1) <= room:
                self.defs["call"] = made.item
                return array({"$ref": "#/$defs/call"}, 1, made.most)
            else:
                error = self.too_long(made)
        assert error is not None
        raise error

    def too_long(self, made: _Calls) -> GrammarError:
        tool, size = max(
            ((tool, worst_bytes(_call(self.profile, tool, _CALL_RUNGS[-1][1]))) for tool in self.toolbox),
            key=lambda pair: pair[1],
        )
        needed = size + 3 + self.skeleton + 6 + MARGIN
        return GrammarError(
            f"tool {tool.name}: its shortest bounded call needs max_tokens >= {needed}, and a step has {self.room + MARGIN}",
            tool=tool.name,
            keyword="max_tokens",
            hint="Raise max_tokens, or bound the tool's parameters (max_length, enum, fewer fields).",
        )


_ADD: Schema = {"enum": ["add"]}
_SILENT: Schema = {"enum": [""]}
_REQUIRED = {"summary", "refs", "evidence"}


def _step(focus: Schema, delta: Schema, calls: Schema, message: Schema) -> Schema:
    return closed(
        {"state_focus": focus, "state_delta": delta, "tool_calls": calls, "assistant_message": message}
    )


_CALLS: WeakKeyDictionary[Toolbox, dict[tuple[Profile, int], _Calls | GrammarError]] = WeakKeyDictionary()


def _calls(profile: Profile, toolbox: Toolbox, index: int) -> _Calls | GrammarError:
    """Calls under one rung; built once per toolbox, for they don't depend on the step."""
    known = _CALLS.setdefault(toolbox, {})
    if (profile, index) not in known:
        most, limits = _CALL_RUNGS[index]
        try:
            item = any_of([_call(profile, tool, limits) for tool in toolbox])
            known[profile, index] = _Calls(most, item, worst_bytes(item))
        except GrammarError as error:
            known[profile, index] = error
    return known[profile, index]


def _call(profile: Profile, tool: Tool, limits: Limits) -> Schema:
    arguments = bounded(profile, tool.name, tool.schema, limits).schema
    return closed({"name": {"enum": [tool.name]}, "arguments": arguments})


@lru_cache(maxsize=4096)
def _quoted(value: str) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _compact(schema: Schema) -> str:
    """JSON text in the order of the schema: the order of properties is the order in which the model writes them."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
