"""Tools that are described by a JSON Schema instead of a Python signature."""

from typing import Any

import pytest

from flowstate_local.errors import GrammarError, UsageError
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Tool, Toolbox, ToolResult

pytestmark = pytest.mark.anyio

PAYMENT = {
    "title": "Payment",
    "type": "object",
    "properties": {"id": {"type": "string"}, "amount": {"type": "number", "default": 1}},
    "required": ["id", "amount"],
}
PAY: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$defs": {"Payment": PAYMENT},
    "type": "object",
    "properties": {
        "payments": {"type": "array", "items": {"$ref": "#/$defs/Payment"}, "description": "What is paid."},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "self": {"type": "integer"},
    },
    "required": ["payments"],
}


async def echo(**arguments: Any) -> dict[str, Any]:
    return arguments


async def call(schema: dict[str, Any], **arguments: Any) -> ToolResult:
    box = Toolbox([Tool.from_schema("pay", "Pay\n it.", schema, echo)])
    return await box.run(ToolCall(name="pay", arguments=arguments))


def test_it_looks_to_the_model_like_any_other_tool() -> None:
    pay = Tool.from_schema("pay", "Pay\n it.", PAY, echo)
    assert pay.signature == (
        "pay(payments: list[{id: string, amount: number}], note?: string|null, self?: integer)"
        " - Pay it. payments: What is paid."
    )
    assert pay.schema["additionalProperties"] is False
    assert pay.schema["$defs"]["Payment"]["additionalProperties"] is False
    assert PAYMENT["title"] == "Payment", "the schema that was given stays as it was"


async def test_arguments_reach_the_function_as_they_were_written() -> None:
    result = await call(PAY, payments=[{"id": "a", "amount": 3}], self=2)
    assert result.raw == b'{"payments":[{"amount":3,"id":"a"}],"self":2}'
    result = await call(PAY, payments=[{"id": "-1", "amount": "-2.50"}], note="-3")
    assert result.raw == b'{"note":"-3","payments":[{"amount":-2.5,"id":"-1"}]}'


async def test_every_wrong_argument_is_named() -> None:
    result = await call(PAY, payments=[{"id": 7}], note=1, extra=2)
    assert result.failure is not None
    assert result.failure.kind == "bad_arguments"
    message = result.failure.message
    for part in (
        "'extra' was unexpected",
        "note: 1 is not valid",
        "payments.0: 'amount'",
        "payments.0.id: 7",
    ):
        assert part in message


def test_what_cannot_be_a_tool_is_refused_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="can't be called 'no name'"):
        Tool.from_schema("no name", "", PAY, echo)
    with pytest.raises(UsageError, match="must be an object, not array"):
        Tool.from_schema("pay", "", {"type": "array"}, echo)
    with pytest.raises(UsageError, match="no JSON Schema"):
        Tool.from_schema("pay", "", {"type": "objekt"}, echo)
    free = {"type": "object", "properties": {"x": {"type": "object", "additionalProperties": True}}}
    with pytest.raises(GrammarError) as refused:
        Tool.from_schema("pay", "", free, echo)
    assert (refused.value.path, refused.value.keyword) == ("/properties/x", "additionalProperties")
    assert Tool.from_schema("pay", "", free, echo, for_model=False).schema["properties"]["x"]
