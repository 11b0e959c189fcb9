"""An MCP server on stdio whose list of tools is what its argument names: empty, endless, twice the same, hostile."""

import sys
from typing import Any

import anyio
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

TEXT = {"type": "string"}


def object_of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"in": schema}, "required": ["in"]}
    return schema


LISTS: dict[str, list[Tool]] = {
    "empty": [],
    "twice": [
        Tool(name="same", description="first", input_schema=object_of()),
        Tool(name="same", description="second", input_schema=object_of()),
        Tool(name="a-b", input_schema=object_of()),
        Tool(name="a_b", input_schema=object_of()),
        Tool(name="3d", input_schema=object_of()),
        Tool(name="日本", input_schema=object_of()),
    ],
    "hostile": [
        Tool(
            name="fine",
            description="x " * 50_000,
            input_schema=object_of(["q"], q={**TEXT, "description": "y" * 9_000}),
        ),
        Tool(name="anything", input_schema=object_of(["value"], value={})),
        Tool(
            name="mostly",
            input_schema=object_of(["q"], q=TEXT, extra={"type": "object", "additionalProperties": True}),
        ),
        Tool(name="remote", input_schema=object_of(["q"], q={"$ref": "http://127.0.0.1:9/schema.json"})),
        Tool(
            name="recursive",
            input_schema={
                **object_of(["node"], node={"$ref": "#/$defs/node"}),
                "$defs": {"node": object_of([], next={"$ref": "#/$defs/node"})},
            },
        ),
        Tool(name="deep", input_schema=nested(60)),
        Tool(name="nonsense", input_schema={"type": "object", "properties": ["a", "b"]}),
        Tool(name="bad_keyword", input_schema=object_of(["q"], q={"type": "string", "minLength": "three"})),
        Tool(
            name="old",
            input_schema={
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {
                    "place": {"$ref": "#/definitions/place"},
                    "count": {"type": "integer", "format": "uint32", "minimum": 0},
                    "host": {"type": "string", "format": "hostname"},
                },
                "required": ["place"],
                "additionalProperties": True,
                "definitions": {"place": object_of(["description"], description=TEXT)},
            },
        ),
    ],
}


async def main(which: str) -> None:
    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        if which == "endless":
            number = int((params.cursor if params else None) or 0)
            tool = Tool(name=f"t{number}", input_schema=object_of())
            return ListToolsResult(tools=[tool], next_cursor=str(number + 1))
        return ListToolsResult(tools=LISTS[which])

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        return CallToolResult(content=[TextContent(text=f"{params.name} {params.arguments}")])

    server: Server[Any] = Server(which, on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main, sys.argv[1])
