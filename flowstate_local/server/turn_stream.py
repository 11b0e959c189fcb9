"""The reply of a turn while it is written, for whatever format of server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from flowstate_local.loop import RequestResult

KEEP_ALIVE_S = 15.0
"""Silence after which a comment goes out, or proxies would take the connection for dead."""
KEEP_ALIVE = ": still working\n\n"


class TurnStream:
    """Collects pieces of a reply; `write` goes to the service as `on_text`."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()

    def write(self, text: str) -> None:
        """Take a piece of the reply. From the event loop only."""
        self._pieces.put_nowait(text)

    async def texts(self, work: "asyncio.Future[RequestResult]") -> AsyncIterator[str]:
        """The reply in pieces, the rest of it at the end; "" after each silence.

        Ends when the turn does; its result, or what it raised, is `work.result()`.
        """
        work.add_done_callback(lambda _: self._pieces.put_nowait(None))
        said = ""
        while True:
            piece: str | None = ""
            with suppress(TimeoutError):
                piece = await asyncio.wait_for(self._pieces.get(), KEEP_ALIVE_S)
            if piece is None:
                break
            said += piece
            yield piece
        if not work.cancelled() and work.exception() is None and work.result().outcome != "waiting":
            rest = unsaid(work.result().message, said)
            if rest:
                yield rest


def unsaid(message: str, said: str) -> str:
    """What of a reply its stream has not brought: all of it where nothing was streamed, or something else.

    A reply has no blanks around it; what the model wrote, and was streamed, may.
    """
    told = said.lstrip()
    if message.startswith(told):
        return message[len(told) :]
    return "" if told.rstrip() == message else message


def sse(value: dict[str, Any], event: str = "") -> str:
    """One server-sent event."""
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n"
