"""What the model may say at one step, as a JSON Schema or a regular expression that the engine masks with.

Under the profiles `guidance` and `xgrammar` every step gets its own grammar: the ids it may open, cite and refer to
are listed, and every text, list and number is bounded so that the longest sentence fits `max_tokens` even if the
tokenizer spends a token on each byte. Such a step can't be cut off and can't name a thing that doesn't exist.

Under `outlines` an automaton over the whole vocabulary is compiled in advance, which takes seconds. So this profile's
grammar depends on the tools alone: ids are a pattern, texts have no bounds, and ISU and PSA judge the rest.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

from flowstate_local.completion import Constraint, Profile
from flowstate_local.errors import GrammarError
from flowstate_local.nodes import EvidenceId, NodeId, NodeType
from flowstate_local.schema_rules import (
    MAX_TEXT,
    ROOMY,
    Limits,
    Schema,
    any_of,
    array,
    bounded,
    closed,
    text,
    worst_bytes,
)
from flowstate_local.tools import Tool, Toolbox

Defer = Literal["strict", "trust"]
"""How a step that opens something is kept from acting: by the runtime, or by the model itself (the paper's rule)."""

MAX_FOCUS = 2
"""Ids that one look may name. Given more places, a small model fills them all, with repeats."""
MAX_MESSAGE_CHARS = 4_000
MARGIN = 8
"""Tokens kept back: one for the end of the sequence, the rest for engines that count a stop token or two more."""
MIN_MESSAGE_BYTES = 24
MAX_STATES = 6_000
"""Budget of the outlines profile: about 25 CPU seconds on a vocabulary of 152,000 (cost = states x vocabulary)."""
MAX_CLOSED_TOOLS = 5
"""With more tools the outlines profile writes arguments as plain JSON and leaves them to the tools' validation."""

_X_GUIDANCE = '{"whitespace_flexible":false,"json_allowed_escapes":"n\\\\\\""}'
"""Options that llguidance reads from the schema: no blanks between tokens, and no escape longer than two bytes."""


@dataclass(frozen=True)
class StepFacts:
    """What the loop knows before a step; the grammar lets the model name nothing else."""

    openable: Sequence[str] = ()
    """Ids that state_focus may name: nodes, raw results and their pages, folded requests, none of them open yet."""
    resolvable: Sequence[NodeId] = ()
    """Ids that refs may target."""
    replaceable: Sequence[NodeId] = ()
    """Those of them that a node may supersede: what was read."""
    evidence: Sequence[EvidenceId] = ()
    """Raw results that a node may cite."""
    own: Sequence[NodeId] = ()
    """Nodes made in this request, which update and remove may target."""
    next_number: int = 1
    """Number of the first free node id."""
    may_record: bool = True
    """Whether something was seen that can be recorded. Before, all there is to write is what the user wants: a note of
    preferences, and neither calls nor replies carry a delta."""
    fresh: bool = False
    """Whether the step before brought something raw. Then this one writes down what it saw before it is gone from
    the prompt. Otherwise a step that acts writes nothing: that would be a guess at the result."""
    again: bool = False
    """Whether the step before acted upon a fact that was refused; the call waits for a better one."""
    may_note: bool = True
    """Whether a delta alone is allowed now."""
    may_look: bool = True
    may_act: bool = True
    may_reply: bool = True
    defer: Defer = "strict"


def step_constraint(profile: Profile, toolbox: Toolbox, facts: StepFacts, max_tokens: int) -> Constraint:
    """The grammar of one step.

    Args:
        profile: which library masks the tokens.
        toolbox: the tools of the request.
        facts: ids and guards of this step.
        max_tokens: tokens the engine will generate at most, the one that ends the sequence included.

    Raises:
        GrammarError: a tool's shortest call, or every shape of a step, needs more than `max_tokens`; or the profile
            can't hold the tools.
    """
    if profile == "outlines":
        acts = facts.may_act and len(toolbox) > 0
        return Constraint("regex", _static_regex(toolbox, facts.defer, facts.may_look, acts))
    return Constraint("json", _Step(profile, toolbox, facts, max_tokens).text())


def react_constraint(
    profile: Profile, toolbox: Toolbox, max_tokens: int, *, may_act: bool = True
) -> Constraint:
    """The grammar of one step of a plain ReAct agent: a thought, and then calls or a reply.

    Args:
        profile: which library masks the tokens.
        toolbox: the tools of the request.
        max_tokens: tokens the engine will generate at most, the one that ends the sequence included.
        may_act: whether calls are allowed now.

    Raises:
        GrammarError: a tool's shortest call needs more than `max_tokens`.
    """
    if profile == "outlines":
        return Constraint("regex", _react_regex(toolbox, may_act=may_act))
    step = _Step(profile, toolbox, StepFacts(may_record=False), max_tokens)
    room = step.room - MAX_THOUGHT_BYTES
    thought = _dump(text(0, MAX_THOUGHT_BYTES, MAX_THOUGHT_BYTES, lines=False))
    shapes = []
    if may_act and len(toolbox):
        shapes.append(_react_shape(thought, step.needed_calls(room - 4).text, _SILENT.text))
    if (said := step.message(room - 4)) is not None:
        shapes.append(_react_shape(thought, _EMPTY.text, said.text))
    if not shapes:
        raise GrammarError(
            f"no step fits {max_tokens} tokens", keyword="max_tokens", hint="Raise max_tokens."
        )
    defs = ",".join(f"{_dump(name)}:{schema}" for name, schema in step.defs.items())
    options = f',"x-guidance":{_X_GUIDANCE}' if profile == "guidance" else ""
    return Constraint("json", f'{{"anyOf":[{",".join(shapes)}],"$defs":{{{defs}}}{options}}}')


MAX_THOUGHT_BYTES = 240


def json_constraint(
    profile: Profile, schema: Mapping[str, Any], max_tokens: int, *, name: str = "output"
) -> Constraint:
    """The grammar of any other JSON object: what a judge says, what is written into a memory.

    Texts and lists get the largest bounds, up to their declared ones, whose longest sentence fits `max_tokens`.
    Declare the small ones (`maxLength`, `maxItems`), and the rest of the room goes to those that are left open. Under
    `outlines` only short texts and lists are bounded, so there an output may be cut off.

    Args:
        profile: which library masks the tokens.
        schema: of an object, as pydantic writes it.
        max_tokens: tokens the engine will generate at most, the one that ends the sequence included.
        name: what the schema describes, for errors.

    Raises:
        GrammarError: the profile can't hold the schema, or its longest sentence under the tightest bounds needs more
            than `max_tokens`.
    """
    return _json_constraint(profile, _dump(schema), max_tokens, name)


_JSON_LIMITS = tuple(
    Limits(text_bytes, items, comfortable=MAX_TEXT)
    for text_bytes, items in (
        *(
            (8_000, 16),
            (6_000, 16),
            (4_000, 16),
            (3_000, 16),
            (2_400, 12),
            (1_800, 12),
            (1_200, 12),
            (960, 12),
        ),
        *(
            (720, 8),
            (600, 8),
            (480, 8),
            (360, 8),
            (240, 6),
            (180, 6),
            (120, 4),
            (90, 4),
            (64, 3),
            (32, 2),
            (16, 1),
        ),
    )
)


@lru_cache(maxsize=256)
def _json_constraint(profile: Profile, schema_text: str, max_tokens: int, name: str) -> Constraint:
    schema = json.loads(schema_text)
    if profile == "outlines":
        held = bounded(profile, name, schema, ROOMY).schema
        return Constraint("regex", _affordable(_regex_of(held), name))
    made = _fitting(profile, name, schema, max_tokens - MARGIN)
    if profile == "guidance":
        made = {**made, "x-guidance": json.loads(_X_GUIDANCE)}
    return Constraint("json", _dump(made))


def _fitting(profile: Profile, name: str, schema: Schema, room: int) -> Schema:
    """`schema` under the loosest limits whose longest sentence takes at most `room` bytes.

    Raises:
        GrammarError: there are none, or the profile can't hold the schema at all.
    """
    needed = bounded(profile, name, schema, _JSON_LIMITS[0]).worst_bytes
    for limits in _JSON_LIMITS:
        try:
            made = bounded(profile, name, schema, limits)
        except GrammarError:
            break  # a declared minimum is above these limits, and so above all that follow
        if made.worst_bytes <= room:
            return made.schema
        needed = made.worst_bytes
    raise GrammarError(
        f"{name}: its shortest bounded form needs max_tokens of {needed + MARGIN}, and there are {room + MARGIN}",
        keyword="max_tokens",
        hint="Raise max_tokens, or bound the schema (maxLength, maxItems, enum, fewer fields).",
    )


def _react_shape(thought: str, calls: str, message: str) -> str:
    return (
        f'{{"type":"object","properties":{{"thought":{thought},"tool_calls":{calls},'
        f'"assistant_message":{message}}},"required":["thought","tool_calls","assistant_message"],'
        '"additionalProperties":false}'
    )


# --- guidance and xgrammar: one grammar per step ------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A piece of the schema, already as JSON text, with the bytes of its longest sentence."""

    text: str
    size: int


_EMPTY = _Part('{"type":"array","maxItems":0}', 2)
_SILENT = _Part('{"enum":[""]}', 2)
_SKELETON = len('{"state_focus":,"state_delta":,"tool_calls":,"assistant_message":}')


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
        ops=4,
        summary=1_000,
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
        summary=600,
        content=1_200,
        slots=3,
        slot_value=120,
        refs=4,
        evidence=4,
        changes=True,
        dated=True,
    ),
    _Rung(
        ops=4, summary=480, content=640, slots=2, slot_value=80, refs=4, evidence=4, changes=True, dated=True
    ),
    _Rung(ops=3, summary=480, content=240, slots=2, slot_value=40, refs=3, evidence=3, changes=True),
    _Rung(ops=3, summary=240, slots=1, slot_value=40, refs=2, evidence=2, changes=True),
    _Rung(ops=2, summary=240, slots=1, slot_value=32, refs=2, evidence=2, changes=True),
    _Rung(ops=2, summary=160, refs=2, changes=True),
    _Rung(ops=2, summary=90, changes=True),
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


class _Step:
    """Divides `max_tokens` among the parts of each shape, then writes the schema down."""

    def __init__(self, profile: Profile, toolbox: Toolbox, facts: StepFacts, max_tokens: int) -> None:
        self.profile = profile
        self.toolbox = toolbox
        self.facts = facts
        self.max_tokens = max_tokens
        self.room = max_tokens - MARGIN - _SKELETON
        """Bytes for the four values of a step together."""
        self.defs: dict[str, str] = {}
        self.ids = _Ids(
            number=len(str(facts.next_number + _RUNGS[0].ops)),
            target=_longest(facts.resolvable),
            evidence=_longest(facts.evidence),
            own=_longest(facts.own),
        )

    def text(self) -> str:
        shapes = self.strict() if self.facts.defer == "strict" else self.trust()
        if not shapes:
            raise GrammarError(
                f"no shape of a step fits {self.max_tokens} tokens, or the guards left none",
                keyword="max_tokens",
                hint="Raise max_tokens; 200 is enough for a short reply.",
            )
        defs = ",".join(f"{_dump(name)}:{schema}" for name, schema in self.defs.items())
        options = f',"x-guidance":{_X_GUIDANCE}' if self.profile == "guidance" else ""
        return f'{{"anyOf":[{",".join(shapes)}],"$defs":{{{defs}}}{options}}}'

    def strict(self) -> list[str]:
        """Look, act, reply, note: each opens, calls or says one kind of thing.

        A look carries no delta: a small model that may write before it has read fills the state with copies of
        the index and with conclusions it then believes (docs/decisions/002). ISU would accept one all the same.
        """
        facts, shapes = self.facts, []
        rung = self.rung(self.room // 2)
        least = int(facts.fresh)
        if facts.may_look and (focus := self.focus(self.room - 6)) is not None:
            shapes.append(_shape(focus, _EMPTY, _EMPTY, _SILENT))
        if facts.may_act and len(self.toolbox):
            delta, calls = self.act(rung if facts.may_record and (facts.fresh or facts.again) else None)
            shapes.append(_shape(_EMPTY, delta, calls, _SILENT))
        kept = rung if facts.may_record else None
        if facts.may_reply and (said := self.message(self.room - 4 - self.size(kept))) is not None:
            shapes.append(_shape(_EMPTY, self.delta(kept, least=least), _EMPTY, said))
        note = rung or self.rung(self.room - 6)
        if facts.may_note and note is not None:
            shapes.append(_shape(_EMPTY, self.delta(note, least=1), _EMPTY, _SILENT))
        return shapes

    def trust(self) -> list[str]:
        """Anything together, as disjoint cases by the first part that says something."""
        facts = self.facts
        focus = self.focus(self.room // 4) if facts.may_look else None
        acts = facts.may_act and len(self.toolbox) > 0
        others = (focus.size if focus else 2) + (MIN_MESSAGE_BYTES if facts.may_reply else 2)
        calls = self.calls(self.room // 3) or self.needed_calls(self.room - others - 2) if acts else None
        rest = self.room - (focus.size if focus else 2) - (calls.size if calls else 2)
        rung = self.rung((rest - MIN_MESSAGE_BYTES) * 2 // 3)
        said = self.message(rest - self.size(rung)) if facts.may_reply else None
        delta, maybe_calls, maybe_said = self.delta(rung), _or(_EMPTY, calls), _or(_SILENT, said)
        shapes = []
        if focus is not None:
            shapes.append(_shape(focus, delta, maybe_calls, maybe_said))
        if calls is not None:
            shapes.append(_shape(_EMPTY, delta, calls, maybe_said))
        if said is not None:
            shapes.append(_shape(_EMPTY, delta, _EMPTY, said))
        if facts.may_note and rung is not None:
            shapes.append(_shape(_EMPTY, self.delta(rung, least=1), _EMPTY, _SILENT))
        return shapes

    def focus(self, room: int) -> _Part | None:
        if not self.facts.openable:
            return None
        longest = max(_quoted(i) for i in self.facts.openable)
        most = min(MAX_FOCUS, (room - 2) // (longest + 1))
        if most < 1:
            return None
        self.defs["open"] = _enum(self.facts.openable)
        return _Part(
            f'{{"type":"array","items":{_ref("open")},"minItems":1,"maxItems":{most}}}',
            2 + most * (longest + 1),
        )

    def message(self, room: int) -> _Part | None:
        """A text that says something, or None if a few words don't fit."""
        if room < MIN_MESSAGE_BYTES:
            return None
        plain = self.profile == "xgrammar"
        schema = text(1, MAX_MESSAGE_CHARS, room - 2, blank=False, plain=plain, comfortable=500)
        return _Part(_dump(schema), worst_bytes(schema))

    # --- the delta

    def size(self, rung: _Rung | None) -> int:
        return 2 if rung is None else _delta_bytes(rung, self.ids)

    def rung(self, room: int) -> _Rung | None:
        """The largest rung whose longest delta fits `room` bytes."""
        return next((rung for rung in _RUNGS if self.size(rung) <= room), None)

    def delta(self, rung: _Rung | None, *, least: int = 0) -> _Part:
        """Adds first, the n-th of them under the n-th free number, then updates and removes."""
        if rung is None:
            return _EMPTY
        key = f"op{_RUNGS.index(rung)}"
        if f"{key}_0" not in self.defs:
            self.define(rung, key)
        adds = [_ref(f"{key}_{place}") for place in range(rung.ops)]
        if not (rung.changes and self.facts.own):
            return _Part(_tuple(adds, least), self.size(rung))
        change = _ref(f"{key}_change")
        # One array for each number of adds: a ref to a sibling then always finds it before itself.
        options = [_tuple(adds[:n] + [change] * (rung.ops - n), max(n, least)) for n in range(rung.ops + 1)]
        return _Part(f'{{"anyOf":[{",".join(options)}]}}', self.size(rung))

    def define(self, rung: _Rung, key: str) -> None:
        facts = self.facts
        known = {
            "node": facts.resolvable,
            "read": facts.replaceable,
            "raw": facts.evidence,
            "own": facts.own,
        }
        for name, ids in known.items():
            if ids:
                self.defs[name] = _enum(ids)
        made = _operations(
            self.profile,
            rung,
            key,
            frozenset(name for name, ids in known.items() if ids),
            get_args(NodeType) if facts.may_record else ("preference",),
        )
        for name, schema in made.items():
            for place in range(rung.ops):
                schema = schema.replace(_free_id(place), f"{ID_PREFIX}{facts.next_number + place}")
            self.defs[name] = schema

    # --- calls

    def act(self, rung: _Rung | None) -> tuple[_Part, _Part]:
        """A delta and calls that fit together; the delta gives way first."""
        smaller = _RUNGS[_RUNGS.index(rung) :] if rung else ()
        for delta in smaller:
            calls = self.calls(self.room - 4 - self.size(delta))
            if calls is not None:
                return self.delta(delta, least=1), calls
        return _EMPTY, self.needed_calls(self.room - 6)

    def calls(self, room: int) -> _Part | None:
        """The largest tool calls that fit `room` bytes."""
        for index, (most, _) in enumerate(_CALL_RUNGS):
            item = _call_of(self.profile, self.toolbox, index)
            if item is not None and 2 + most * (item.size + 1) <= room:
                self.defs["call"] = item.text
                array_text = f'{{"type":"array","items":{_ref("call")},"minItems":1,"maxItems":{most}}}'
                return _Part(array_text, 2 + most * (item.size + 1))
        return None

    def needed_calls(self, room: int) -> _Part:
        """The largest calls that fit `room`.

        Raises:
            GrammarError: the shortest call of some tool doesn't fit.
        """
        calls = self.calls(room)
        if calls is not None:
            return calls
        limits = _CALL_RUNGS[-1][1]
        tool, size = max(
            ((tool, worst_bytes(_call(self.profile, tool, limits))) for tool in self.toolbox),
            key=lambda pair: pair[1],
        )
        raise GrammarError(
            f"tool {tool.name}: its shortest bounded call needs max_tokens of {size + 3 + self.max_tokens - room}, "
            f"and this step has {self.max_tokens}",
            tool=tool.name,
            keyword="max_tokens",
            hint="Raise max_tokens, or bound the tool's parameters (max_length, enum, fewer fields).",
        )


@dataclass(frozen=True)
class _Ids:
    """Characters of the longest ids of a step."""

    number: int
    target: int
    evidence: int
    own: int


@lru_cache(maxsize=4096)
def _delta_bytes(rung: _Rung, ids: _Ids) -> int:
    """The longest delta of a rung; tests hold it against `worst_bytes` of the schema."""
    add = len('{"op":"add","type":"preference","id":""') + len(ID_PREFIX) + ids.number
    update = len('{"op":"update","id":""') + ids.own
    size = max(add, update) + len(',"summary":"","refs":[],"evidence":[]}') + rung.summary
    if rung.content:
        size += len(',"content":""') + rung.content
    if rung.slots:
        size += len(',"slots":[]') + rung.slots * (
            len('{"name":"","value":""},') + _SLOT_NAME_LENGTH + rung.slot_value
        )
    if ids.target or rung.ops > 1:
        target = max(ids.target, len(ID_PREFIX) + ids.number)
        size += rung.refs * (len('{"relation":"supersedes","target":""},') + target)
    if ids.evidence:
        size += rung.evidence * (ids.evidence + 3)
    if rung.dated:
        size += len(',"valid_until":"2026-01-01","confidence":0.012345')
    return 2 + rung.ops * (size + 1)


ID_PREFIX = "n"
"""Nodes are numbered through the space, whatever their type, so that a delta can name its own siblings."""
_SLOT_NAME_LENGTH = 20
_RELATIONS = ["supports", "derives", "follows"]
_SUPERSEDES = "supersedes"


def _free_id(place: int) -> str:
    """Stands for the id at a place of the delta in the cached texts of `_operations`; nothing else there has an @."""
    return f"@{place}@"


@lru_cache(maxsize=256)
def _operations(
    profile: Profile, rung: _Rung, key: str, known: frozenset[str], types: tuple[str, ...]
) -> dict[str, str]:
    """Definitions of a rung's operations: shared fields, an add for each place, and the changes.

    `known` names the definitions of ids that are not empty: node, read, raw, own.
    """
    parts = _fields(profile, rung, "raw" in known)
    made = {f"{key}_{name}": _dump(schema) for name, schema in parts.items()}
    fields = {name: _def(f"{key}_{name}") for name in parts}
    evidence = {"evidence": fields.pop("evidence")}
    for place in range(rung.ops):
        head: dict[str, Schema] = {
            "op": {"enum": ["add"]},
            "type": {"enum": list(types)},
            "id": {"enum": [_free_id(place)]},
        }
        siblings = [_free_id(earlier) for earlier in range(place)]
        links = _links(rung, known, siblings)
        # What a node rests on stands before what it says: with the sources named, a small model speaks of them,
        # and otherwise repeats the request (docs/decisions/002).
        required = ["op", "type", "id", "refs", "evidence", "summary"]
        made[f"{key}_{place}"] = _dump(closed({**head, "refs": links, **evidence, **fields}, required))
    if rung.changes and "own" in known:
        mine = _def("own")
        what = {"refs": _links(rung, known, []), **evidence, **fields}
        update = closed({"op": {"enum": ["update"]}, "id": mine, **what}, ["op", "id", "summary"])
        remove = closed({"op": {"enum": ["remove"]}, "id": mine})
        made[f"{key}_change"] = _dump(any_of([update, remove]))
    return made


def _fields(profile: Profile, rung: _Rung, cited: bool) -> dict[str, Schema]:
    """What an operation may say besides its id and refs."""
    plain = profile == "xgrammar"
    fields: dict[str, Schema] = {
        "summary": text(1, 1_000, rung.summary, lines=False, blank=False, plain=plain, comfortable=120)
    }
    if rung.content:
        fields["content"] = text(0, 100_000, rung.content, plain=plain, comfortable=200)
    if rung.slots:
        name = {"type": "string", "pattern": f"^[A-Za-z][A-Za-z0-9_]{{0,{_SLOT_NAME_LENGTH - 1}}}$"}
        slot = closed({"name": name, "value": text(0, 256, rung.slot_value, lines=False, plain=plain)})
        fields["slots"] = array(slot, 0, rung.slots)
    fields["evidence"] = array(_def("raw"), 0, rung.evidence) if cited and rung.evidence else _NO_ITEMS
    if rung.dated:
        fields["valid_until"] = {"type": "string", "format": "date"}
        step: Schema = {"multipleOf": 0.01} if profile == "guidance" else {}
        fields["confidence"] = {"type": "number", "minimum": 0, "maximum": 1, **step}
    return fields


_NO_ITEMS: Schema = {"type": "array", "maxItems": 0}


def _links(rung: _Rung, known: frozenset[str], siblings: Sequence[str]) -> Schema:
    """Refs to nodes that exist, or that this very delta has added before; only what was read can be superseded."""
    targets: list[Schema] = [_def("node")] if "node" in known else []
    if siblings:
        targets.append({"enum": list(siblings)})
    if not targets or not rung.refs:
        return _NO_ITEMS
    links = [closed({"relation": {"enum": _RELATIONS}, "target": any_of(targets)})]
    if "read" in known:
        links.append(closed({"relation": {"enum": [_SUPERSEDES]}, "target": _def("read")}))
    return array(any_of(links), 0, rung.refs)


def _def(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _tuple(items: Sequence[str], least: int) -> str:
    return f'{{"type":"array","prefixItems":[{",".join(items)}],"minItems":{least},"maxItems":{len(items)}}}'


_CALLS: WeakKeyDictionary[Toolbox, dict[tuple[Profile, int], _Part | None]] = WeakKeyDictionary()


def _call_of(profile: Profile, toolbox: Toolbox, index: int) -> _Part | None:
    """A call under one rung, made once per toolbox; None if some tool's declared minimum is above the rung."""
    known = _CALLS.setdefault(toolbox, {})
    if (profile, index) not in known:
        try:
            schema = any_of([_call(profile, tool, _CALL_RUNGS[index][1]) for tool in toolbox])
            known[profile, index] = _Part(_dump(schema), worst_bytes(schema))
        except GrammarError as error:
            if index == len(_CALL_RUNGS) - 1 and not any(known.values()):
                raise error from None
            known[profile, index] = None
    return known[profile, index]


def _call(profile: Profile, tool: Tool, limits: Limits) -> Schema:
    arguments = bounded(profile, tool.name, tool.schema, limits).schema
    return closed({"name": {"enum": [tool.name]}, "arguments": arguments})


def _shape(focus: _Part, delta: _Part, calls: _Part, message: _Part) -> str:
    return (
        f'{{"type":"object","properties":{{"state_focus":{focus.text},"state_delta":{delta.text},'
        f'"tool_calls":{calls.text},"assistant_message":{message.text}}},'
        '"required":["state_focus","state_delta","tool_calls","assistant_message"],"additionalProperties":false}'
    )


def _or(nothing: _Part, something: _Part | None) -> _Part:
    if something is None:
        return nothing
    return _Part(f'{{"anyOf":[{nothing.text},{something.text}]}}', max(nothing.size, something.size))


def _ref(name: str) -> str:
    return f'{{"$ref":"#/$defs/{name}"}}'


def _enum(values: Iterable[str]) -> str:
    return f'{{"enum":{_dump(list(values))}}}'


def _longest(ids: Iterable[str]) -> int:
    return max((_quoted(i) - 2 for i in ids), default=0)


@lru_cache(maxsize=65_536)
def _quoted(value: str) -> int:
    return len(_dump(value).encode())


def _dump(value: Any) -> str:
    """JSON text in the order of the schema: the order of properties is the order in which the model writes them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# --- outlines: one grammar per tool set ---------------------------------------------------------------------------

_FOCUS_ID = "[a-z][a-z0-9_]*(#[1-9][0-9]*)?"
_NODE_ID = "[a-z][a-z0-9_]*"
_VALUE = (
    r'("([^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])*"|(-)?(0|[1-9][0-9]*)(\.[0-9]+)?|true|false|null)'
    # the string is Outlines' own, written out, so that the automaton shares its states
)
_LIST = rf"\[({_VALUE}(,{_VALUE})*)?\]"
_KEY = r'"[A-Za-z_][A-Za-z0-9_]*"'
_FLAT = rf"\{{({_KEY}:({_VALUE}|{_LIST})(,{_KEY}:({_VALUE}|{_LIST}))*)?\}}"
_ANY_ARGUMENTS = rf"\{{({_KEY}:({_VALUE}|{_LIST}|{_FLAT})(,{_KEY}:({_VALUE}|{_LIST}|{_FLAT}))*)?\}}"
"""Arguments two levels deep, whatever their names."""

_REGEXES: WeakKeyDictionary[Toolbox, dict[tuple[str, bool, bool], str]] = WeakKeyDictionary()


def _static_regex(toolbox: Toolbox, defer: str, looks: bool, acts: bool) -> str:
    known = _REGEXES.setdefault(toolbox, {})
    key = (defer, looks, acts)
    if key not in known:
        known[key] = _affordable_for(toolbox, _step_regex(toolbox, defer, looks, acts))
    return known[key]


def _step_regex(toolbox: Toolbox, defer: str, looks: bool, acts: bool) -> str:
    focus = rf'\["{_FOCUS_ID}"(,"{_FOCUS_ID}"){{0,{MAX_FOCUS - 1}}}\]'
    delta = _delta_regex()
    said = r'"([^"\\\x00-\x20\x7F-\x9F]|\\["\\])([^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])*"'
    call = _calls_regex(toolbox)
    calls = rf"\[{call}(,{call})?\]"
    if defer == "trust":
        maybe_focus = rf"({focus}|\[\])" if looks else r"\[\]"
        maybe_calls = rf"({calls}|\[\])" if acts else r"\[\]"
        return _shapes_regex([(maybe_focus, delta, maybe_calls, rf'({said}|"")')])
    shapes = [(r"\[\]", delta, r"\[\]", rf'({said}|"")')]
    if looks:
        shapes.append((focus, r"\[\]", r"\[\]", '""'))
    if acts:
        shapes.append((r"\[\]", delta, calls, '""'))
    return _shapes_regex(shapes)


def _react_regex(toolbox: Toolbox, *, may_act: bool) -> str:
    said = r'"([^"\\\x00-\x20\x7F-\x9F]|\\["\\])([^"\\\x00-\x1F\x7F-\x9F]|\\["\\/bfnrt])*"'
    ends = [rf'\[\],"assistant_message":{said}']
    if may_act and len(toolbox):
        call = _calls_regex(toolbox)
        ends.append(rf'\[{call}(,{call})?\],"assistant_message":""')
    thought = r'"([^"\\\x00-\x1F\x7F-\x9F]|\\["\\])*"'
    return _affordable_for(toolbox, rf'\{{"thought":{thought},"tool_calls":({"|".join(ends)})\}}')


def _shapes_regex(shapes: Iterable[tuple[str, str, str, str]]) -> str:
    options = (
        rf'\{{"state_focus":{focus},"state_delta":{delta},"tool_calls":{calls},"assistant_message":{message}\}}'
        for focus, delta, calls, message in shapes
    )
    return f"({'|'.join(options)})"


@lru_cache(maxsize=1)
def _delta_regex() -> str:
    refs = array(
        closed({"relation": {"enum": [*_RELATIONS, _SUPERSEDES]}, "target": _pattern(_NODE_ID)}), 0, 2
    )
    fields: dict[str, Schema] = {
        "refs": refs,
        "evidence": array(_pattern("t[1-9][0-9]*"), 0, 2),
        "summary": {"type": "string"},
    }
    kinds: Schema = {"enum": list(get_args(NodeType))}
    add = closed({"op": {"enum": ["add"]}, "type": kinds, "id": _pattern(_NODE_ID), **fields})
    update = closed({"op": {"enum": ["update"]}, "id": _pattern(_NODE_ID), "summary": {"type": "string"}})
    remove = closed({"op": {"enum": ["remove"]}, "id": _pattern(_NODE_ID)})
    op = "(" + "|".join(_regex_of(one) for one in (add, update, remove)) + ")"
    return rf"\[({op}(,{op})?)?\]"


def _calls_regex(toolbox: Toolbox) -> str:
    if len(toolbox) > MAX_CLOSED_TOOLS:
        names = "|".join(toolbox.names)
        return rf'\{{"name":"({names})","arguments":{_ANY_ARGUMENTS}\}}'
    return "(" + "|".join(_call_regex(tool) for tool in toolbox) + ")"


def _call_regex(tool: Tool) -> str:
    schema = bounded("outlines", tool.name, tool.schema, ROOMY).schema
    arguments = _regex_of(schema) if schema["properties"] else r"\{\}"
    return rf'\{{"name":"{tool.name}","arguments":{arguments}\}}'


def _pattern(pattern: str) -> Schema:
    return {"type": "string", "pattern": f"^{pattern}$"}


def _regex_of(schema: Schema) -> str:
    """Outlines' own regular expression for a schema, without blanks between tokens."""
    # Outlines takes seconds to import, and only its own profile needs it.
    from outlines.types.dsl import JsonSchema, to_regex  # noqa: PLC0415

    return str(to_regex(JsonSchema(_dump(schema), whitespace_pattern="")))


def _affordable_for(toolbox: Toolbox, regex: str) -> str:
    heaviest = max(toolbox, key=lambda tool: len(_dump(tool.schema))).name if len(toolbox) else ""
    return _affordable(regex, f"these {len(toolbox)} tools", tool=heaviest)


def _affordable(regex: str, subject: str, *, tool: str = "") -> str:
    """`regex`, if compiling it for a large vocabulary is bearable.

    Raises:
        GrammarError: its automaton has more than `MAX_STATES` states.
    """
    states = count_states(regex)
    if states > MAX_STATES:
        raise GrammarError(
            f"the outlines profile is too costly for {subject}: {states} states, at most {MAX_STATES}",
            tool=tool,
            keyword="states",
            hint="Use the guidance profile, offer fewer tools, or give them fewer and simpler parameters.",
        )
    return regex


def count_states(regex: str) -> int:
    """States of the automaton that outlines_core builds; its cost is about this times the size of the vocabulary."""
    from outlines_core import Index, Vocabulary  # noqa: PLC0415

    vocabulary = Vocabulary(256, {bytes([code]): [code] for code in range(256)})
    return len(Index(regex, vocabulary).get_transitions())
