"""tau2's side of a conversation: an agent of its half-duplex interface, in the thread of its orchestrator.

It knows tau2's messages only by their shape and never sees the task, its gold actions or the user's scenario.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar
from uuid import uuid4

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.tau3.conversation import Call, Conversation

T = TypeVar("T")

FALLBACK = (
    "I am sorry, I could not work that out. Could you please tell me again what you would like me to do?"
)
"""Said where a request ended without a reply: tau2 fails a conversation at an empty message."""


class MessageTypes(Protocol):
    """The two classes of tau2 that an agent makes."""

    @property
    def AssistantMessage(self) -> Any:
        """Takes role, content or tool_calls, cost, usage."""

    @property
    def ToolCall(self) -> Any:
        """Takes id, name, arguments."""


class BridgeAgent:
    """See tau2's HalfDuplexAgent. Its methods block, so they must not be called in the thread of `loop`."""

    def __init__(
        self, types: MessageTypes, conversation: Conversation, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.fallbacks = 0
        """Requests that ended without a reply."""
        self.failure: Exception | None = None
        """What the method raised."""
        self._types = types
        self._conversation = conversation
        self._loop = loop

    def set_seed(self, seed: int) -> None:
        """Methods sample as their budget says."""

    def get_init_state(self, message_history: Any = None) -> None:
        """The state is the method's own; the history holds only tau2's greeting."""

    @classmethod
    def is_stop(cls, message: Any) -> bool:
        """The user ends the conversation."""
        return False

    def stop(self, message: Any = None, state: Any = None) -> None:
        """The user's last words are not delivered: nothing is left to be done about them."""
        self._wait(self._conversation.close())

    def generate_next_message(self, message: Any, state: Any) -> tuple[Any, Any]:
        """A user's message opens a request, a tool's goes on with it."""
        if message.role == "tool":
            wanted = self._wait(self._conversation.deliver(message.content or "", failed=bool(message.error)))
        else:
            wanted = self._wait(self._conversation.ask(message.content))
        return (self._call(wanted) if isinstance(wanted, Call) else self._say(wanted)), state

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except Exception as error:
            self.failure = error
            raise

    # tau2 sorts messages by the time they were made: each is made right before it is returned.

    def _call(self, call: Call) -> Any:
        made = self._types.ToolCall(id=f"call_{uuid4().hex}", name=call.name, arguments=dict(call.arguments))
        # What a call cost is known when its request has ended; the reply carries it.
        return self._message(tool_calls=[made], usage={"prompt_tokens": 0, "completion_tokens": 0})

    def _say(self, answer: Answer) -> Any:
        replied = answer.outcome == "replied" and bool(answer.message.strip())
        self.fallbacks += not replied
        usage = {
            "prompt_tokens": sum(one.prompt_tokens for one in answer.usage),
            "completion_tokens": sum(one.generated_tokens for one in answer.usage),
        }
        return self._message(content=answer.message if replied else FALLBACK, usage=usage)

    def _message(self, **content: Any) -> Any:
        return self._types.AssistantMessage(role="assistant", cost=0.0, **content)
