"""The method's side of a conversation: one request at a time, which stops wherever it needs the world.

A method calls its tools and waits for what they bring; tau2 wants to be asked for one message after the other. So the
tools of this toolbox don't act: a call comes out of `ask` or `deliver` as a value, and the method goes on when its
result is delivered. Any method works unchanged.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flowstate_local.baselines.base import Answer, Method
from flowstate_local.bench.tau3.schemas import safe
from flowstate_local.errors import ToolError
from flowstate_local.tools import Tool, Toolbox

PATIENCE_S = 3_600.0
"""How long a call may wait: tools answer at once, but calls made at the same time are answered one by one."""


@dataclass(frozen=True)
class Call:
    """A tool the method wants to be run."""

    name: str
    arguments: Mapping[str, Any]


class Conversation:
    """A method in the midst of its requests. Belongs to one event loop.

    Args:
        functions: name, description and parameters of each tool, as in an OpenAI schema.
        make: makes the method with a toolbox of these.
    """

    def __init__(self, functions: Iterable[Mapping[str, Any]], make: Callable[[Toolbox], Method]) -> None:
        self.answers: list[Answer] = []
        """One for each request that has ended."""
        self.cut = 0
        """Requests that were still running when the conversation ended (0 or 1); their usage isn't known."""
        self._calls: asyncio.Queue[tuple[Call, asyncio.Future[str]]] = asyncio.Queue()
        self._one_at_a_time = asyncio.Lock()
        self._asking: asyncio.Task[Answer] | None = None
        self._awaited: asyncio.Future[str] | None = None
        self._closed = False
        self.method = make(Toolbox(self._tool(function) for function in functions))

    async def ask(self, text: str) -> Call | Answer:
        """Open a request; the first thing that the method wants."""
        assert self._asking is None, "a request is open"
        if self._closed:
            raise asyncio.CancelledError
        self._asking = asyncio.create_task(self.method.ask(text))
        return await self._next()

    async def deliver(self, content: str, *, failed: bool) -> Call | Answer:
        """What the last call brought; the next thing that the method wants."""
        assert self._awaited is not None, "no call is open"
        if failed:
            self._awaited.set_exception(ToolError(content))
        else:
            self._awaited.set_result(content)
        self._awaited = None
        return await self._next()

    async def close(self) -> None:
        """End the open request, if there is one."""
        self._closed = True
        asking, self._asking = self._asking, None
        if asking is None:
            return
        self.cut += 1
        asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled():
            asking.exception()  # read once, or asyncio complains that nobody did

    async def _next(self) -> Call | Answer:
        asking = self._asking
        if asking is None:
            raise asyncio.CancelledError
        called = asyncio.ensure_future(self._calls.get())
        try:
            await asyncio.wait({asking, called}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            called.cancel()  # of no effect when it's done
        if called.done() and not called.cancelled():
            call, self._awaited = called.result()
            return call
        self._asking = None
        answer = asking.result()
        self.answers.append(answer)
        return answer

    def _tool(self, function: Mapping[str, Any]) -> Tool:
        name = str(function["name"])

        async def call(**arguments: Any) -> str:
            async with self._one_at_a_time:
                result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
                self._calls.put_nowait((Call(name, arguments), result))
                return await result

        about, parameters = str(function.get("description") or ""), safe(function["parameters"])
        return Tool.from_schema(name, about, parameters, call, timeout_s=PATIENCE_S)
