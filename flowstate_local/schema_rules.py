"""Which JSON Schema a grammar can hold, and the bounds that make its longest sentence finite.

`bounded` turns a tool's schema into the one the engine masks with: references inlined, objects closed, every
string, array, map and number bounded. What a profile's matcher would ignore or get wrong is rewritten as the table
says, or refused with a `GrammarError` that names tool, path and keyword. Nothing is weakened in silence: what the
grammar doesn't hold exactly is listed as a note, and is checked by the tool's own validation of every call.

    $ref                   inlined; recursion is refused
    oneOf                  anyOf, when a discriminator or the types keep the branches apart
    type list              anyOf
    integer                -999,999,999,999 .. 999,999,999,999 where it has no bounds
    number                 -999,999,999 .. 999,999,999 where it has no bounds; six decimals, or those of multipleOf
    number below zero      guidance: may also be quoted, "-33.86", for its matcher doesn't bound their digits otherwise
    string, array, map     at most `Limits` long; a shorter declared bound stays
    map keys               1 to 24 ASCII letters, digits, blanks and _.:/-
    texts under xgrammar   without quotes, backslashes and newlines, which its patterns can't escape
    under outlines         bounds of numbers, and those of long texts and lists, become notes: its matcher ignores
                           the former, and its automaton grows with the latter

The last part of this file computes the longest sentence of such a schema in bytes. A byte-level tokenizer may spend
a token on each, so that many tokens are always enough.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from re import _constants as _sre  # type: ignore[attr-defined]  # no public parser of patterns exists
from re import _parser as _sre_parser  # type: ignore[attr-defined]
from typing import Any

from flowstate_local.completion import Profile
from flowstate_local.errors import GrammarError

Schema = dict[str, Any]

MAX_TOOLS = 64
MAX_DEPTH = 8
MAX_BRANCHES = 32
MAX_ENUM = 1_000
MAX_OUTLINES_ENUM = 256
MAX_OUTLINES_TEXT = 32
MAX_OUTLINES_ITEMS = 4
MAX_SIZE = 4_000
"""Subschemas of one tool after references are inlined."""
MAX_INTEGER = 999_999_999_999
MAX_NUMBER = 999_999_999
DECIMALS = 6
MAX_TEXT = 100_000
MAX_XGRAMMAR_TEXT = 400
"""Characters; xgrammar's compile time grows with the bound (5.8 s for 1,000 on a vocabulary of 152,000)."""
MAX_XGRAMMAR_REPEAT = 100
"""Largest count of one repetition: from 200 on, xgrammar 0.2.8 fails an internal check while it compiles."""
MAP_KEY = "^[A-Za-z0-9_ .:/-]{1,24}$"

_NOTES = {
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
}
_BY_TOOL = "checked by the tool, not by the grammar"
_ESCAPED = (ord('"'), ord("\\"), ord("\n"))
_FORMATS = {"date": 12, "time": 32, "date-time": 42, "uuid": 38, "email": 66, "uri": 202, "ipv4": 17}
"""Accepted formats with the most bytes each may take, quotes included."""
_OPEN_FORMATS = {"time": 30, "date-time": 40, "email": 64, "uri": 200}
"""Formats whose matcher has no longest text; they get a maxLength too."""
_OUTLINES_FORMATS = ("date", "uuid")


COMFORTABLE_CHARS = 60


@dataclass(frozen=True)
class Limits:
    """Bounds for what a schema leaves open."""

    text_bytes: int
    """Longest string without quotes, in bytes of UTF-8 with escapes."""
    items: int
    """Most items of an array, entries of a map."""
    comfortable: int = COMFORTABLE_CHARS
    """Below so many characters a text is bounded by its bytes exactly, which masks slower but wastes no room."""


ROOMY = Limits(text_bytes=8_000, items=16)
SMALLEST = Limits(text_bytes=8, items=1)


@dataclass(frozen=True)
class Bounded:
    """A schema whose sentences are finite, and what it leaves to the tool's own validation."""

    schema: Schema
    notes: tuple[str, ...]
    worst_bytes: int
    """Longest sentence; 0 where there is none, under outlines."""


def check_tool_schema(profile: Profile, tool: str, schema: Mapping[str, Any]) -> Bounded:
    """Show that `profile` can hold `schema`, under the roomiest limits.

    Raises:
        GrammarError: it can't; the error names tool, path and keyword.
    """
    return bounded(profile, tool, schema, ROOMY)


def bounded(profile: Profile, tool: str, schema: Mapping[str, Any], limits: Limits) -> Bounded:
    """Rewrite the arguments of `tool` for the grammar of `profile`.

    Raises:
        GrammarError: a keyword that can't be held, a recursive or too large schema, or a declared minimum above
            `limits` (keyword "minLength" or "minItems").
    """
    rewriter = _Rewriter(profile, tool, schema.get("$defs", {}), limits)
    rewritten = rewriter.rewrite({k: v for k, v in schema.items() if k != "$defs"}, "", 0)
    return Bounded(rewritten, tuple(rewriter.notes), 0 if profile == "outlines" else worst_bytes(rewritten))


class _Rewriter:
    def __init__(self, profile: Profile, tool: str, defs: Mapping[str, Any], limits: Limits) -> None:
        self.profile = profile
        self.tool = tool
        self.defs = defs
        self.limits = limits
        self.notes: list[str] = []
        self.size = 0
        self.open_refs: list[str] = []

    def refuse(self, path: str, keyword: str, why: str, hint: str | None = None) -> GrammarError:
        message = f"tool {self.tool}: {path or '/'}: {keyword}: {why}"
        return GrammarError(message, tool=self.tool, path=path, keyword=keyword, hint=hint)

    def note(self, path: str, keyword: str, why: str) -> None:
        self.notes.append(f"{path or '/'}: {keyword}: {why}")

    def only(self, schema: Mapping[str, Any], path: str, *allowed: str) -> None:
        for keyword in schema:
            if keyword not in allowed and keyword not in _NOTES:
                raise self.refuse(path, keyword, "no grammar of this profile enforces it here")

    def rewrite(self, schema: Any, path: str, depth: int) -> Schema:
        self.size += 1
        if self.size > MAX_SIZE:
            raise self.refuse(path, "$ref", f"more than {MAX_SIZE} subschemas once references are inlined")
        if depth > MAX_DEPTH:
            raise self.refuse(path, "type", f"nested deeper than {MAX_DEPTH} levels")
        if not isinstance(schema, Mapping) or not set(schema) - _NOTES:
            hint = "Give the parameter a concrete type instead of Any or object."
            raise self.refuse(path, "type", "any value at all can't be bounded", hint)
        if "$ref" in schema:
            return self._ref(schema, path, depth)
        if "enum" in schema or "const" in schema:
            return self._enum(schema, path)
        if "anyOf" in schema or "oneOf" in schema or "allOf" in schema:
            return self._choice(schema, path, depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            options = [{**schema, "type": one} for one in kind]
            return self._any_of(options, path, "type", depth)
        table: dict[Any, Callable[[Mapping[str, Any], str, int], Schema]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": self._plain,
            "null": self._plain,
        }
        if kind not in table:
            keyword = "type" if kind is not None else next(k for k in schema if k not in _NOTES)
            raise self.refuse(path, keyword, "a schema needs one of the JSON types")
        return table[kind](schema, path, depth)

    def _ref(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(schema, path, "$ref")
        target = str(schema["$ref"])
        name = target.removeprefix("#/$defs/").replace("~1", "/").replace("~0", "~")
        if not target.startswith("#/$defs/") or name not in self.defs:
            raise self.refuse(path, "$ref", f"{target} is not among the schema's own $defs")
        if name in self.open_refs:
            hint = "Flatten the type: a list of items that name their parent says the same."
            raise self.refuse(
                path, "$ref", f"{name} contains itself, so its sentences have no longest one", hint
            )
        self.open_refs.append(name)
        try:
            return self.rewrite(self.defs[name], path, depth)
        finally:
            self.open_refs.pop()

    def _enum(self, schema: Mapping[str, Any], path: str) -> Schema:
        self.only(schema, path, "enum", "const", "type")
        keyword = "enum" if "enum" in schema else "const"
        values = list(schema["enum"]) if keyword == "enum" else [schema["const"]]
        most = MAX_OUTLINES_ENUM if self.profile == "outlines" else MAX_ENUM
        if not 1 <= len(values) <= most:
            raise self.refuse(path, keyword, f"{len(values)} values; 1 to {most} can be held")
        for value in values:
            if not (value is None or isinstance(value, (bool, int, float, str))):
                raise self.refuse(path, keyword, "only texts, numbers, true, false and null can be listed")
            if isinstance(value, str) and any(ord(c) < 32 and c != "\n" or c == "\x7f" for c in value):
                raise self.refuse(path, keyword, f"{value!r} holds a control character")
        return {"enum": values}

    def _choice(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        keyword = next(k for k in ("anyOf", "oneOf", "allOf") if k in schema)
        self.only(schema, path, keyword, "discriminator")
        options = schema[keyword]
        if keyword == "allOf":
            if len(options) != 1:
                raise self.refuse(path, keyword, "several schemas at once are enforced by no profile")
            return self.rewrite(options[0], path, depth)
        if keyword == "oneOf" and "discriminator" not in schema and not self._apart(options):
            hint = "Use anyOf, or a discriminated union."
            raise self.refuse(
                path, keyword, "its branches overlap, and grammars can't exclude an overlap", hint
            )
        return self._any_of(options, path, keyword, depth)

    def _apart(self, options: Sequence[Any]) -> bool:
        kinds = [self._kind(option) for option in options]
        return (
            None not in kinds
            and len(set(kinds)) == len(kinds)
            and {"integer", "number"} - set(kinds) != set()
        )

    def _kind(self, option: Any) -> str | None:
        if isinstance(option, Mapping) and "$ref" in option:
            return self._kind(self.defs.get(str(option["$ref"]).rpartition("/")[2]))
        kind = option.get("type") if isinstance(option, Mapping) else None
        return kind if isinstance(kind, str) else None

    def _any_of(self, options: Sequence[Any], path: str, keyword: str, depth: int) -> Schema:
        if not options or len(options) > MAX_BRANCHES:
            raise self.refuse(path, keyword, f"{len(options)} branches; 1 to {MAX_BRANCHES} can be held")
        return any_of([self.rewrite(o, f"{path}/{keyword}/{i}", depth) for i, o in enumerate(options)])

    def _plain(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(schema, path, "type")
        return {"type": schema["type"]}

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        if "properties" not in schema and isinstance(schema.get("additionalProperties"), Mapping):
            return self._map(schema, path, depth)
        self.only(schema, path, "type", "properties", "required", "additionalProperties")
        if schema.get("additionalProperties", False) is not False:
            raise self.refuse(
                path, "additionalProperties", "an object must be closed, or be a map and nothing else"
            )
        declared = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in declared:
                raise self.refuse(path, "required", f"{name!r} is not among the properties")
        properties = {
            name: self.rewrite(value, f"{path}/properties/{_escape(name)}", depth + 1)
            for name, value in declared.items()
        }
        if self.profile == "outlines" and not properties and depth > 0:
            raise self.refuse(path, "properties", "this profile can't hold an empty object inside another")
        return closed(properties, [name for name in properties if name in schema.get("required", ())])

    def _map(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(schema, path, "type", "additionalProperties", "maxProperties")
        value = self.rewrite(schema["additionalProperties"], f"{path}/additionalProperties", depth + 1)
        if self.profile == "outlines":
            if "maxProperties" in schema:
                self.note(path, "maxProperties", _BY_TOOL)
            return {"type": "object", "additionalProperties": value}
        entries = min(schema.get("maxProperties", self.limits.items), self.limits.items)
        return {
            "type": "object",
            "patternProperties": {MAP_KEY: value},
            "additionalProperties": False,
            "maxProperties": entries,
        }

    def _array(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        if "prefixItems" in schema:
            return self._tuple(schema, path, depth)
        self.only(schema, path, "type", "items", "minItems", "maxItems")
        items = self.rewrite(schema.get("items", {}), f"{path}/items", depth + 1)
        if self.profile == "outlines":
            kept = self._few(schema, path, "minItems", "maxItems", MAX_OUTLINES_ITEMS)
            return {"type": "array", "items": items, **kept}
        low = schema.get("minItems", 0)
        return array(items, low, min(schema.get("maxItems", self.limits.items), max(self.limits.items, low)))

    def _few(self, schema: Mapping[str, Any], path: str, least: str, most: str, limit: int) -> Schema:
        """Bounds as outlines can afford them: all of them if they are small, else a note."""
        declared = {keyword: schema[keyword] for keyword in (least, most) if keyword in schema}
        if schema.get(most, schema.get(least, 0)) <= limit:
            return declared
        for keyword in declared:
            self.note(path, keyword, _BY_TOOL)
        return {}

    def _tuple(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(schema, path, "type", "prefixItems", "minItems", "maxItems", "items")
        options = schema["prefixItems"]
        if schema.get("minItems") != len(options) or schema.get("maxItems") != len(options):
            raise self.refuse(path, "prefixItems", "only tuples of a fixed length can be held")
        items = [self.rewrite(o, f"{path}/prefixItems/{i}", depth + 1) for i, o in enumerate(options)]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _string(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(schema, path, "type", "minLength", "maxLength", "pattern", "format")
        if "format" in schema:
            return self._format(schema, path)
        low, high = schema.get("minLength", 0), schema.get("maxLength", MAX_TEXT)
        if low > high:
            raise self.refuse(path, "minLength", f"{low} is more than maxLength {high}")
        if self.profile == "outlines":
            return self._unbounded_string(schema, path)
        if "pattern" not in schema:
            if low > self.limits.text_bytes // 4:
                raise self.refuse(path, "minLength", f"{low} characters need {4 * low} bytes of room")
            room, plain = self.limits.text_bytes, self.profile == "xgrammar"
            return text(low, high, room, plain=plain, comfortable=self.limits.comfortable)
        narrowest, widest = self._pattern_width(schema["pattern"], path)
        if self.profile == "xgrammar":
            return self._pattern_alone(schema, path, narrowest, widest)
        high = min(high, widest, max(self.limits.text_bytes // 4, narrowest, low))
        if high < narrowest:
            raise self.refuse(
                path, "maxLength", f"{high} is less than the {narrowest} that the pattern needs"
            )
        bounds = {**({"minLength": low} if low > narrowest else {}), "maxLength": high}
        return {"type": "string", "pattern": schema["pattern"], **bounds}

    def _unbounded_string(self, schema: Mapping[str, Any], path: str) -> Schema:
        if "pattern" not in schema:
            return {"type": "string", **self._few(schema, path, "minLength", "maxLength", MAX_OUTLINES_TEXT)}
        self._pattern_width(schema["pattern"], path)
        for keyword in {"minLength", "maxLength"} & set(schema):
            self.note(path, keyword, _BY_TOOL)
        return {"type": "string", "pattern": schema["pattern"]}

    def _pattern_alone(self, schema: Mapping[str, Any], path: str, narrowest: int, widest: int) -> Schema:
        """Of xgrammar, which takes no lengths beside a pattern."""
        if widest > self.limits.text_bytes // 4 and widest > narrowest:
            hint = "Bound its repetitions, such as {1,20} instead of +."
            raise self.refuse(path, "pattern", f"its longest match has {widest} characters", hint)
        if _longest_repeat(_sre_parser.parse(schema["pattern"])) > MAX_XGRAMMAR_REPEAT:
            raise self.refuse(path, "pattern", f"a repetition counts beyond {MAX_XGRAMMAR_REPEAT}")
        for keyword in {"minLength", "maxLength"} & set(schema):
            self.note(path, keyword, _BY_TOOL)
        return {"type": "string", "pattern": schema["pattern"]}

    def _pattern_width(self, pattern: str, path: str) -> tuple[int, int]:
        try:
            parsed = _sre_parser.parse(pattern)
        except Exception as error:
            raise self.refuse(path, "pattern", f"{pattern!r} is no regular expression: {error}") from error
        banned = {_sre.ASSERT, _sre.ASSERT_NOT, _sre.GROUPREF, _sre.GROUPREF_EXISTS}
        if used := banned & set(_operators(parsed)):
            raise self.refuse(
                path, "pattern", f"{pattern!r}: {', '.join(sorted(map(str, used)))} can't be held"
            )
        if (
            not (pattern.startswith("^") and pattern.endswith("$"))
            or "|" in pattern
            and not _one_group(pattern)
        ):
            hint = "Write ^...$ around the whole pattern, with alternatives in parentheses."
            raise self.refuse(path, "pattern", f"{pattern!r} is not anchored at both ends", hint)
        if parsed.state.flags & ~re.UNICODE:
            raise self.refuse(path, "pattern", f"{pattern!r}: inline flags can't be held")
        if self.profile != "guidance" and _may_escape(parsed):
            hint = "List the characters that are allowed, without quote, backslash and newline."
            raise self.refuse(path, "pattern", f"{pattern!r} matches what JSON must escape", hint)
        narrowest, widest = parsed.getwidth()
        return int(narrowest), int(min(widest, 1 << 30))

    def _format(self, schema: Mapping[str, Any], path: str) -> Schema:
        self.only(schema, path, "type", "format")
        name = schema["format"]
        if name not in _FORMATS:
            hint = f"Known formats: {', '.join(_FORMATS)}. A pattern may say the same."
            raise self.refuse(path, "format", f"{name!r} is enforced by no grammar", hint)
        if self.profile == "xgrammar" and name in _OPEN_FORMATS:
            raise self.refuse(path, "format", f"{name!r} has no longest text under xgrammar")
        if self.profile == "outlines" and name not in _OUTLINES_FORMATS:
            self.note(path, "format", _BY_TOOL)
            return {"type": "string"}
        if self.profile != "guidance" and name == "date":
            self.note(path, "format", "a day that its month doesn't have is found by the tool")
        limit = {"maxLength": _OPEN_FORMATS[name]} if name in _OPEN_FORMATS else {}
        return {"type": "string", "format": name, **limit}

    def _integer(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(
            schema, path, "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"
        )
        low = math.ceil(schema.get("minimum", -MAX_INTEGER))
        high = math.floor(schema.get("maximum", MAX_INTEGER))
        if "exclusiveMinimum" in schema:
            low = max(low, math.floor(schema["exclusiveMinimum"]) + 1)
        if "exclusiveMaximum" in schema:
            high = min(high, math.ceil(schema["exclusiveMaximum"]) - 1)
        if low > high:
            raise self.refuse(path, "minimum", f"no integer is at least {low} and at most {high}")
        if max(abs(low), abs(high)) > 10**17:
            raise self.refuse(path, "maximum", "bounds beyond 10^17 can't be held")
        step = schema.get("multipleOf")
        if self.profile == "outlines":
            return self._outlines_integer(schema, path, low, high)
        if step is not None and self.profile == "xgrammar":
            raise self.refuse(path, "multipleOf", "xgrammar ignores it")
        if step is None:
            return {"type": "integer", "minimum": low, "maximum": high}
        if low < 0:
            raise self.refuse(path, "multipleOf", "negative multiples can't be held", "Add minimum: 0.")
        if step != int(step) or not 0 < step < 2**31:
            raise self.refuse(path, "multipleOf", f"{step} is no positive whole number below 2^31")
        return {"type": "integer", "minimum": low, "maximum": high, "multipleOf": int(step)}

    def _outlines_integer(self, schema: Mapping[str, Any], path: str, low: int, high: int) -> Schema:
        step = schema.get("multipleOf", 1)
        values = [v for v in range(low, min(high, low + 10_000) + 1) if v % step == 0]
        if high - low < 10_000 and 1 <= len(values) <= MAX_OUTLINES_TEXT:
            return {"enum": values}
        self._note_bounds(schema, path)
        return {"type": "integer"}

    def _note_bounds(self, schema: Mapping[str, Any], path: str) -> None:
        for keyword in schema:
            if keyword != "type" and keyword not in _NOTES:
                self.note(path, keyword, _BY_TOOL)

    def _number(self, schema: Mapping[str, Any], path: str, depth: int) -> Schema:
        self.only(
            schema, path, "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"
        )
        step = self._step(schema, path)
        low = schema.get("minimum", schema.get("exclusiveMinimum", -MAX_NUMBER))
        high = schema.get("maximum", schema.get("exclusiveMaximum", MAX_NUMBER))
        if low > high or max(abs(low), abs(high)) > 10**12:
            raise self.refuse(path, "minimum", f"{low} .. {high} is empty or reaches beyond 10^12")
        if self.profile == "outlines":
            self._note_bounds(schema, path)
            return {"type": "number"}
        if self.profile == "xgrammar":
            if "multipleOf" in schema:
                raise self.refuse(path, "multipleOf", "xgrammar ignores it")
            return {k: v for k, v in schema.items() if k not in _NOTES} | _missing_bounds(schema)
        options: list[Schema] = []
        if high >= 0:
            options.append(_nonnegative(schema, low, high, step))
        if low < 0:
            digits = len(str(int(abs(low))))
            pattern = f"^-(0|[1-9][0-9]{{0,{digits - 1}}})(\\.[0-9]{{1,{_places(step)}}})?$"
            options.append({"type": "string", "pattern": pattern, "maxLength": digits + _places(step) + 2})
            self.note(
                path, "minimum", "a negative number is written in quotes; its range is checked by the tool"
            )
        return any_of(options)

    def _step(self, schema: Mapping[str, Any], path: str) -> float:
        step = schema.get("multipleOf", 10.0**-DECIMALS)
        scaled = Decimal(str(step)) * 10**DECIMALS
        if not step > 0 or scaled != int(scaled) or scaled >= 2**31:
            raise self.refuse(path, "multipleOf", f"{step} is no positive decimal of up to {DECIMALS} places")
        return float(step)


def _missing_bounds(schema: Mapping[str, Any]) -> Schema:
    low: Schema = {} if {"minimum", "exclusiveMinimum"} & set(schema) else {"minimum": -MAX_NUMBER}
    high: Schema = {} if {"maximum", "exclusiveMaximum"} & set(schema) else {"maximum": MAX_NUMBER}
    return low | high


def _nonnegative(schema: Mapping[str, Any], low: float, high: float, step: float) -> Schema:
    made: Schema = {"type": "number"}
    if low < 0:
        made["minimum"] = 0
    else:
        made[
            "exclusiveMinimum" if "minimum" not in schema and "exclusiveMinimum" in schema else "minimum"
        ] = low
    made["exclusiveMaximum" if "maximum" not in schema and "exclusiveMaximum" in schema else "maximum"] = high
    made["multipleOf"] = step
    return made


def _places(step: float) -> int:
    exponent = Decimal(str(step)).normalize().as_tuple().exponent
    return max(1, -int(exponent))


def _operators(parsed: Any) -> list[Any]:
    found = []
    for operator, argument in parsed:
        found.append(operator)
        for inner in _inside(operator, argument):
            found += _operators(inner)
    return found


def _longest_repeat(parsed: Any) -> int:
    longest = 0
    for operator, argument in parsed:
        if operator in (_sre.MAX_REPEAT, _sre.MIN_REPEAT):
            longest = max(longest, int(argument[1]))
        longest = max(longest, *map(_longest_repeat, _inside(operator, argument)), 0)
    return longest


def _may_escape(parsed: Any) -> bool:
    """Whether a match may hold a character that a JSON string must escape."""
    for operator, argument in parsed:
        if operator is _sre.LITERAL and (argument < 32 or argument in _ESCAPED):
            return True
        if operator in (_sre.ANY, _sre.NOT_LITERAL):
            return True
        if operator is _sre.IN and _set_may_escape(argument):
            return True
        if any(_may_escape(inner) for inner in _inside(operator, argument)):
            return True
    return False


def _inside(operator: Any, argument: Any) -> list[Any]:
    if operator is _sre.BRANCH:
        return list(argument[1])
    return [argument[-1]] if operator in (_sre.MAX_REPEAT, _sre.MIN_REPEAT, _sre.SUBPATTERN) else []


def _set_may_escape(members: Any) -> bool:
    for operator, argument in members:
        low, high = argument if operator is _sre.RANGE else (argument, argument)
        if operator is _sre.NEGATE or operator is _sre.CATEGORY and "NOT" in str(argument):
            return True
        if operator is _sre.CATEGORY:
            if "SPACE" in str(argument):
                return True
        elif low < 32 or any(low <= code <= high for code in _ESCAPED):
            return True
    return False


def _one_group(pattern: str) -> bool:
    """Whether no alternative stands outside parentheses, where it would escape the anchors."""
    depth, escaped, in_set = 0, False, False
    for c in pattern:
        if escaped:
            escaped = False
        elif c == "\\":
            escaped = True
        elif in_set:
            in_set = c != "]"
        elif c == "[":
            in_set = True
        elif c in "()":
            depth += 1 if c == "(" else -1
        elif c == "|" and depth == 0:
            return False
    return True


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


# --- building blocks that the protocol's own schema uses too ------------------------------------------------------


def closed(properties: Mapping[str, Schema], required: Sequence[str] | None = None) -> Schema:
    """An object of exactly these properties, in this order; all required unless told otherwise."""
    names = list(properties) if required is None else list(required)
    return {
        "type": "object",
        "properties": dict(properties),
        "required": names,
        "additionalProperties": False,
    }


def any_of(options: Sequence[Schema]) -> Schema:
    """One of these; no wrapper around a single one."""
    return options[0] if len(options) == 1 else {"anyOf": list(options)}


def array(items: Schema, low: int, high: int) -> Schema:
    """Between `low` and `high` of these."""
    return {"type": "array", "items": items, **({"minItems": low} if low else {}), "maxItems": high}


_BLANK = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""What str.strip() removes beyond ASCII."""
_WIDTHS = (
    (1, r" !#-\[\]-~", r"!#-\[\]-~"),
    (2, " -~\x80-\u07ff", "!-~\xa1-\u07ff"),
    (
        3,
        " -~\x80-\uffff",
        "!-~\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\uffff",
    ),
    (4, " -~\x80-\U0010ffff", ""),
)
"""Bytes per character, the characters that need no more (escaped ones need 2), and those of them that aren't blank."""


def text(
    low: int,
    high: int,
    room: int,
    *,
    lines: bool = True,
    blank: bool = True,
    plain: bool = False,
    comfortable: int = COMFORTABLE_CHARS,
) -> Schema:
    """Text of `low` to `high` characters without control characters, in at most `room` bytes without the quotes.

    Where `room` allows few characters of 4 bytes, the pattern also admits longer text of narrower characters: up
    to `room` of plain ASCII, a half of it if there are quotes, newlines or Latin letters, and so on.

    Args:
        low: fewest characters; `4 * low <= room`.
        high: most characters.
        room: bytes of UTF-8, with an escape counted as two.
        lines: whether newlines are allowed.
        blank: whether the text may start with a blank, and so consist of nothing else.
        plain: keep out all that JSON must escape, for matchers that don't.
        comfortable: characters of any width that are enough to forgo the longer but slower pattern.
    """
    if plain:
        return _plain_text(low, min(high, room // 4, MAX_XGRAMMAR_TEXT), blank)
    newline = "\n" if lines else ""
    if room // 4 >= min(high, comfortable):
        first = f"\\x00-\\x20\\x7f{_BLANK}"
        rest = "\\x00-\\x09\\x0b-\\x1f\\x7f" if lines else "\\x00-\\x1f\\x7f"
        return {
            "type": "string",
            "pattern": _sequence(f"^{first}", f"^{rest}", low, min(high, room // 4), blank),
        }
    branches = []
    for width, wide, inked in _WIDTHS:
        first = inked or f"^\\x00-\\x20\\x7f{_BLANK}"
        branches.append(
            _sequence(first, wide + (newline if width > 1 else ""), low, min(high, room // width), blank)
        )
    return {"type": "string", "pattern": "^(" + "|".join(b[1:-1] for b in branches) + ")$"}


def _plain_text(low: int, high: int, blank: bool) -> Schema:
    banned = '\\x00-\\x1f\\x7f"\\\\'
    start, rest = ("", f"[^{banned}]") if blank else (f"[^{banned} {_BLANK}]", f"[^{banned}]")
    low, high = (low, high) if blank else (max(0, low - 1), high - 1)
    whole, part = divmod(high - low, MAX_XGRAMMAR_REPEAT)
    chunks = f"({rest}{{0,{MAX_XGRAMMAR_REPEAT}}}){{0,{whole}}}" if whole else ""
    needed = f"{rest}{{{MAX_XGRAMMAR_REPEAT}}}" * (low // MAX_XGRAMMAR_REPEAT)
    return {
        "type": "string",
        "pattern": f"^{start}{needed}{rest}{{{low % MAX_XGRAMMAR_REPEAT},{low % MAX_XGRAMMAR_REPEAT + part}}}{chunks}$",
    }


def _sequence(first: str, rest: str, low: int, high: int, blank: bool) -> str:
    if blank or high < 1:
        return f"^[{rest}]{{{low},{high}}}$"
    return f"^[{first}][{rest}]{{{max(0, low - 1)},{high - 1}}}$"


# --- the longest sentence -----------------------------------------------------------------------------------------


def worst_bytes(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None) -> int:
    """Bytes of the longest sentence of a schema that `bounded` or `grammar` made.

    A character takes at most 4 bytes: UTF-8 needs no more, and the escapes that the grammar allows (a backslash
    before a quote, a backslash or an n) need 2.
    """
    defs = defs if defs is not None else schema.get("$defs", {})
    if "$ref" in schema:
        return worst_bytes(defs[str(schema["$ref"]).rpartition("/")[2]], defs)
    if "enum" in schema:
        return max(len(json.dumps(value, ensure_ascii=False).encode()) for value in schema["enum"])
    if "anyOf" in schema:
        return max(worst_bytes(option, defs) for option in schema["anyOf"])
    measure = _WORST[schema["type"]]
    return measure(schema, defs)


def _worst_object(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    if "patternProperties" in schema:
        (value,) = schema["patternProperties"].values()
        entry = pattern_bytes(MAP_KEY) + 4 + worst_bytes(value, defs)  # xgrammar puts a blank after its comma
        return 2 + int(schema["maxProperties"]) * (entry + 1)
    members = [
        len(json.dumps(name, ensure_ascii=False).encode()) + 1 + worst_bytes(value, defs)
        for name, value in schema["properties"].items()
    ]
    return 2 + sum(members) + max(0, len(members) - 1)


def _worst_array(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    if schema["maxItems"] == 0:
        return 2
    if "prefixItems" in schema:
        items = [worst_bytes(item, defs) for item in schema["prefixItems"]]
    else:
        items = [worst_bytes(schema["items"], defs)] * int(schema["maxItems"])
    return 2 + sum(items) + max(0, len(items) - 1)


def _worst_string(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    if "format" in schema:
        return _FORMATS[str(schema["format"])]
    inner = pattern_bytes(schema["pattern"])
    return 2 + min(inner, 4 * int(schema.get("maxLength", inner)))


@lru_cache(maxsize=1024)
def pattern_bytes(pattern: str) -> int:
    """Most bytes that a match of `pattern` takes inside a JSON string, escapes included."""
    return _most(_sre_parser.parse(pattern))


def _most(parsed: Any) -> int:
    return sum(_most_of(operator, argument) for operator, argument in parsed)


def _most_of(operator: Any, argument: Any) -> int:
    if operator is _sre.AT:
        return 0
    if operator is _sre.LITERAL:
        return _char_bytes(argument)
    if operator is _sre.IN:
        return _set_bytes(argument)
    if operator in (_sre.MAX_REPEAT, _sre.MIN_REPEAT):
        _, high, inner = argument
        return int(min(int(high), 1 << 20)) * _most(inner)
    if operator is _sre.SUBPATTERN:
        return _most(argument[-1])
    if operator is _sre.BRANCH:
        return max(_most(option) for option in argument[1])
    return 4  # any character, or a negated one


def _set_bytes(members: Any) -> int:
    most = 0
    for operator, argument in members:
        if operator is _sre.LITERAL:
            most = max(most, _char_bytes(argument))
        elif operator is _sre.RANGE:
            escaped = any(argument[0] <= code <= argument[1] for code in _ESCAPED)
            most = max(most, 2 if escaped else 0, _char_bytes(argument[1]))
        else:  # a negation or a class such as \\w
            return 4
    return most


def _char_bytes(code: int) -> int:
    return 2 if code in _ESCAPED else len(chr(code).encode("utf-8", "surrogatepass"))


def _worst_integer(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    # "-0" is a sentence too when the range crosses zero.
    return max(2, len(str(schema["minimum"])), len(str(schema["maximum"])))


def _worst_number(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    bounds = [abs(schema[key]) for key in schema if key not in ("type", "multipleOf")]
    sign = 1 if schema.get("minimum", schema.get("exclusiveMinimum")) < 0 else 0
    return sign + len(str(int(max(bounds)))) + 1 + _places(schema.get("multipleOf", 10.0**-DECIMALS))


_WORST: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], int]] = {
    "object": _worst_object,
    "array": _worst_array,
    "string": _worst_string,
    "integer": _worst_integer,
    "number": _worst_number,
    "boolean": lambda schema, defs: 5,
    "null": lambda schema, defs: 4,
}
