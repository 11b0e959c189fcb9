"""The ablation without ISU: the model writes no state; each reply becomes one node, by a fixed rule.

What is kept is the paper's (section 4.4): the index, progressive access, links to raw results. At the end of a
request one node is built from the final reply and linked to all raw results of the request.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from flowstate_local import psa, rails
from flowstate_local.events import DeltaCommitted, Event, ToolFinished
from flowstate_local.grammar import StepFacts
from flowstate_local.index import gist
from flowstate_local.loop import Agent
from flowstate_local.nodes import Node, NodeId
from flowstate_local.state import ActiveState

SUMMARY_CHARS = 200
NOTICE = 'In this session "state_delta" always stays []: each reply is kept as a node, with the tool results of its request.'


class AgentWithoutIsu(Agent):
    """See `Agent`; takes the same arguments."""

    def __init__(self, *args: Any, instructions: str = "", **options: Any) -> None:
        super().__init__(*args, instructions=f"{NOTICE}\n{instructions}", **options)

    def _facts(self, run: Any, room: int) -> StepFacts:
        free = not (self._must_end(run, room) or rails.repeated_itself(run.last_step))
        # Notes, which bring the index back after a chain was followed, don't exist here; so it is offered all along.
        openable = psa.openable(run.state, run.reader, run.index, self.page_chars, following=False)
        return dataclasses.replace(
            super()._facts(run, room),
            openable=openable,
            own=(),
            may_record=False,
            may_note=False,
            fresh=False,
            again=False,
            may_look=free,
            may_act=free,
            may_reply=True,
        )

    def _advice(self, run: Any) -> str:
        advice = super()._advice(run)
        if any(isinstance(event, ToolFinished) and not event.failure for event in run.last_step):
            return "Reply if the request is answered, else go on with it."
        if "ecord the facts" in advice:
            return "Calculate with the facts that bear on the request, or act."
        if not run.state.log:
            return "An earlier decision or plan is touched: open it first. Otherwise: call a tool, or reply."
        return advice

    async def _follow(self, run: Any, output: Any, replied: Any) -> None:
        # A profile whose grammar is static lets the model write a delta all the same.
        await super()._follow(run, output.model_copy(update={"state_delta": ()}), replied)

    async def _finish(self, run: Any, events: Sequence[Event], outcome: str, message: str) -> None:
        node = _node_of(message, run.state, self._clock())
        added = DeltaCommitted(request=node.request, step=node.step, at=node.created_at, added=(node,))
        await super()._finish(run, [*events, added], outcome, message)


def _node_of(message: str, state: ActiveState, at: float) -> Node:
    """The reply as a node, on all raw results of its request."""
    return Node(
        id=NodeId(f"n{state.next_node}"),
        type="knowledge",
        summary=gist(message, SUMMARY_CHARS) or "-",
        content=message,
        evidence=tuple(evidence for evidence, result in state.results.items() if not result.failure),
        request=state.request,
        step=state.step,
        created_at=at,
    )
