import asyncio
import dataclasses
import datetime
import enum
import json
import threading
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # typing.TypedDict works from Python 3.12 on

from flowstate_local.errors import GrammarError, ToolError, UsageError
from flowstate_local.nodes import EvidenceId, RequestId
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Tool, Toolbox, ToolContext, ToolResult, load_tools, serialise, tool


class Room(BaseModel):
    beds: Annotated[int, Field(ge=1, le=4)]
    view: Literal["sea", "town"] = "sea"


class Level(enum.Enum):
    LOW = "low"
    HIGH = "high"


class Guest(TypedDict):
    name: str


@dataclasses.dataclass
class Card:
    number: str


@tool(idempotent=True, timeout_s=5)
def search_hotels(
    city: str,
    rooms: list[Room],
    level: Level,
    when: datetime.date,
    prices: dict[str, float],
    guest: Guest,
    card: Card | None = None,
    max_price: Annotated[float, Field(ge=0)] = 100,
    schema: int = 3,
) -> dict[str, Any]:
    """Find hotels
    in a city.

    Not for the model.

    Args:
        city: Where to look,
            exactly.
        max_price (float): Dollars per night.

    Returns:
        Whatever.
    """
    return {"city": city, "rooms": rooms, "level": level, "when": when, "card": card, "max": max_price}


async def call(target: Tool | Any, **arguments: Any) -> ToolResult:
    box = target if isinstance(target, Toolbox) else Toolbox([target])
    return await box.run(ToolCall(name=box.names[0], arguments=arguments))


def test_a_tool_stays_callable() -> None:
    @tool
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert (double.name, double.description, double.idempotent, double.timeout_s) == (
        "double",
        "",
        False,
        60.0,
    )


def test_the_signature_line() -> None:
    assert search_hotels.signature == (
        'search_hotels(city: string, rooms: list[{beds: integer 1..4, view?: "sea"|"town"}], '
        'level: "low"|"high", when: string (date), prices: map[string, number], guest: {name: string}, '
        "card?: {number: string}|null, max_price?: number >=0, schema?: integer)"
        " - Find hotels in a city. city: Where to look, exactly.; max_price: Dollars per night."
    )


def test_the_schema_is_closed_everywhere() -> None:
    def objects(schema: Any) -> list[dict[str, Any]]:
        if isinstance(schema, list):
            return [o for item in schema for o in objects(item)]
        if not isinstance(schema, dict):
            return []
        mine = [schema] if schema.get("type") == "object" else []
        return mine + [o for value in schema.values() for o in objects(value)]

    found = objects(search_hotels.schema)
    assert len(found) == 5
    assert all(o["additionalProperties"] is False or "type" in o["additionalProperties"] for o in found)
    assert search_hotels.schema["required"] == ["city", "rooms", "level", "when", "prices", "guest"]


def test_a_property_called_title_survives() -> None:
    @tool
    def publish(title: str, default: str) -> str:
        return title + default

    assert list(publish.schema["properties"]) == ["title", "default"]


@pytest.mark.anyio
async def test_arguments_are_converted_and_results_are_canonical() -> None:
    result = await call(
        search_hotels,
        city="Zürich",
        rooms=[{"beds": 2}],
        level="high",
        when="2026-03-01",
        prices={"low": "-1.5"},
        guest={"name": "Ada"},
        card={"number": "1"},
    )
    assert result.failure is None
    assert result.raw.decode() == (
        '{"card":{"number":"1"},"city":"Zürich","level":"high","max":100,'
        '"rooms":[{"beds":2,"view":"sea"}],"when":"2026-03-01"}'
    )


@pytest.mark.anyio
async def test_bad_arguments_name_their_fields() -> None:
    result = await call(
        search_hotels, city="x", rooms=[{"beds": 9}], level="low", when="x", prices={}, extra=1
    )
    assert result.failure is not None
    assert result.failure.kind == "bad_arguments"
    for field in ("rooms.0.beds", "when", "guest", "extra"):
        assert f"{field}: " in result.failure.message
    assert result.raw.decode() == result.failure.message


@pytest.mark.anyio
async def test_an_omitted_argument_is_left_to_the_function() -> None:
    marker = object()

    @tool
    def keep(value: int | None = marker) -> bool:  # type: ignore[assignment]
        return value is marker

    assert (await call(keep)).raw == b"true"


@pytest.mark.anyio
async def test_unknown_tools_are_a_failure() -> None:
    result = await Toolbox([search_hotels]).run(ToolCall(name="nope", arguments={}))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.message) == (
        "unknown_tool",
        "there is no tool 'nope'; tools: search_hotels",
    )


def raising(error: BaseException) -> Tool:
    @tool
    def fail() -> None:
        raise error

    return fail


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "kind", "message", "retryable"),
    [
        (ValueError("no such city"), "raised", "ValueError: no such city", False),
        (ToolError("try later", kind="busy", retryable=True), "busy", "try later", True),
        (SystemExit(3), "raised", "SystemExit: 3", False),
        (KeyboardInterrupt(), "raised", "KeyboardInterrupt: ", False),
        (StopIteration("x"), "raised", "StopIteration: x", False),
        (TimeoutError("mine"), "raised", "TimeoutError: mine", False),
        (ValueError("\ud800"), "raised", "ValueError: \\ud800", False),
    ],
)
async def test_what_a_tool_raises_becomes_a_failure(
    error: BaseException, kind: str, message: str, retryable: bool
) -> None:
    result = await call(raising(error))
    assert result.failure is not None
    assert (result.failure.kind, result.failure.message, result.failure.retryable) == (
        kind,
        message,
        retryable,
    )
    assert result.raw.decode() == result.failure.message


@pytest.mark.anyio
async def test_async_tools_fail_alike() -> None:
    @tool
    async def leave() -> None:
        raise SystemExit(1)

    @tool
    async def cancel_itself() -> None:
        raise asyncio.CancelledError

    @tool
    async def fail() -> None:
        raise LookupError("x")

    for failing, start in (
        (leave, "SystemExit"),
        (cancel_itself, "CancelledError"),
        (fail, "LookupError: x"),
    ):
        result = await call(failing)
        assert result.failure is not None
        assert result.failure.kind == "raised"
        assert result.failure.message.startswith(start)


@pytest.mark.anyio
async def test_a_hung_thread_times_out_and_is_left_behind() -> None:
    release = threading.Event()

    @tool(timeout_s=0.05, idempotent=True)
    def hang() -> None:
        release.wait(10)

    started = time.monotonic()
    result = await call(hang)
    assert time.monotonic() - started < 5
    assert result.failure is not None
    assert (result.failure.kind, result.failure.retryable) == ("timeout", True)
    assert "0.05 s" in result.failure.message
    release.set()


@pytest.mark.anyio
async def test_an_async_tool_that_ignores_cancellation_times_out_too() -> None:
    @tool(timeout_s=0.05)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            raise ValueError("late") from None
        return ""

    result = await call(stubborn)
    assert result.failure is not None
    assert (result.failure.kind, result.failure.retryable) == ("timeout", False)
    await asyncio.sleep(0.3)  # its late error must disturb nobody


@pytest.mark.anyio
async def test_cancelling_a_call_passes_through_and_stops_the_tool() -> None:
    stopped = asyncio.Event()

    @tool
    async def wait() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            stopped.set()

    task = asyncio.create_task(call(wait))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(stopped.wait(), 1)


@pytest.mark.anyio
async def test_context_is_injected_and_hidden_from_the_model() -> None:
    @tool
    def who(name: str, context: ToolContext) -> str:
        return f"{name} {context.idempotency_key} {context.space} {context.request} {context.evidence}"

    assert list(who.schema["properties"]) == ["name"]
    context = ToolContext("key", "space", RequestId("r1"), EvidenceId("t2"))
    result = await Toolbox([who]).run(ToolCall(name="who", arguments={"name": "x"}), context)
    assert result.raw == b"x key space r1 t2"
    forged = await call(who, name="x", context={"idempotency_key": "mine"})
    assert forged.failure is not None
    assert "context" in forged.failure.message


@pytest.mark.anyio
async def test_five_megabytes_are_kept_whole() -> None:
    @tool
    def big() -> bytes:
        return b"\xff" * 5_000_000

    result = await call(big)
    assert result.raw == b"\xff" * 5_000_000


def loop() -> list[Any]:
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    return cyclic


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, object()]}, "result.a[1]: a object"),
        ({"a": float("nan")}, "result.a: nan"),
        ({1: 2}, "result: key 1"),
        ({"a": b"x"}, "result.a: a bytes"),
        (loop(), "nested deeper"),
        ("\ud800", "result: text with a lone surrogate"),
        ({"a": "\udfff"}, "result.a: text with a lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ([10**5000], "result: "),
        (Room, "result: a "),
    ],
)
def test_results_that_are_not_json_name_the_field(value: Any, where: str) -> None:
    with pytest.raises(ToolError) as caught:
        serialise(value)
    assert caught.value.kind == "bad_result"
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é\n", "é\n"),
        (b"\x00\xff", None),
        (None, "null"),
        ({"b": 1, "a": "é"}, '{"a":"é","b":1}'),
        ({3, 1, 2}, "[1,2,3]"),
        ((1, 2.5, True), "[1,2.5,true]"),
        ([Card("1"), Room(beds=1), Level.LOW], '[{"number":"1"},{"beds":1,"view":"sea"},"low"]'),
        (Path("a/b"), "a/b"),
    ],
)
def test_results_become_text(value: Any, text: str | None) -> None:
    assert serialise(value) == (bytes(value) if text is None else text.encode())


def test_the_canonical_text_does_not_depend_on_the_order_of_registration() -> None:
    def make(name: str) -> Tool:
        def function(a: int) -> int:
            """Do it."""
            return a

        return tool(name=name)(function)

    tools = [make(name) for name in ("b", "a", "c")]
    assert Toolbox(tools).canonical == Toolbox(tools[::-1]).canonical
    assert Toolbox(tools).canonical.splitlines() == [f"{n}(a: integer) - Do it" for n in "abc"]
    assert [t.name for t in Toolbox(tools)] == ["a", "b", "c"]


def test_two_tools_of_one_name_are_refused_naming_both() -> None:
    def twin() -> None: ...
    def other() -> None: ...

    with pytest.raises(UsageError, match=r"twin and .*other"):
        Toolbox([tool(twin), tool(name="twin")(other)])


def test_what_no_tool_can_be() -> None:
    def no_annotation(a) -> None: ...  # type: ignore[no-untyped-def]
    def many(*names: str) -> None: ...
    def keywords(**names: str) -> None: ...
    def positional(a: int, /) -> None: ...
    def unresolved(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def opaque(a: threading.Event) -> None: ...

    for function in (no_annotation, many, keywords, positional, unresolved, opaque, lambda: None):
        with pytest.raises(UsageError):
            tool(function)
    with pytest.raises(UsageError, match="can't be called"):
        tool(name="two words")(raising)
    with pytest.raises(UsageError, match="timeout_s"):
        tool(timeout_s=0)(raising)


class Tree(BaseModel):
    children: list["Tree"] = []


def test_what_no_grammar_can_hold_names_tool_path_and_keyword() -> None:
    def anything(x: Any) -> None: ...
    def unique(x: set[int]) -> None: ...
    def recursive(x: Tree) -> None: ...
    def nested(x: list[dict[str, Annotated[int, Field(ge=5, le=4)]]]) -> None: ...
    def shaped(x: Annotated[str, Field(pattern="^(?=a).*$")]) -> None: ...
    def plain_dict(x: dict) -> None: ...  # type: ignore[type-arg]

    for function, path, keyword in (
        (anything, "/properties/x", "type"),
        (unique, "/properties/x", "uniqueItems"),
        (recursive, "/properties/x/properties/children/items", "$ref"),
        (nested, "/properties/x/items/additionalProperties", "minimum"),
        (plain_dict, "/properties/x", "additionalProperties"),
    ):
        with pytest.raises(GrammarError) as caught:
            tool(function)
        assert (caught.value.tool, caught.value.path, caught.value.keyword) == (
            function.__name__,
            path,
            keyword,
        )
    with pytest.raises((GrammarError, UsageError)):
        tool(shaped)


MODULE = """
from flowstate_local.tools import Toolbox, tool

@tool
def one(a: int) -> int:
    return a

several = [one]
box = Toolbox([one])
number = 3

def make():
    return [one]
"""


def test_tools_are_loaded_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tools_for_a_test.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    for attribute in ("one", "several", "box", "make"):
        assert load_tools(f"my_tools_for_a_test:{attribute}").names == ("one",)
    for bad in (
        "nocolon",
        "no_such_module_at_all:x",
        "my_tools_for_a_test:gone",
        "my_tools_for_a_test:number",
    ):
        with pytest.raises(UsageError):
            load_tools(bad)


def test_schemas_are_plain_json() -> None:
    assert json.loads(json.dumps(search_hotels.schema)) == search_hotels.schema
