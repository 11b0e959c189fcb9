"""The ablation without PSA: no index and no access; all nodes of earlier requests stand in the state, whole.

What is kept is the paper's (section 4.4): ISU, and the full content of everything it ever wrote. Raw results of
earlier requests are out of reach, for only progressive access leads to them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from flowstate_local import rails
from flowstate_local.events import Disclosed, Event
from flowstate_local.grammar import StepFacts
from flowstate_local.index import Index
from flowstate_local.loop import Agent
from flowstate_local.repository import Reader
from flowstate_local.stores.base import Head

NOTICE = (
    "In this session INDEX is empty: all nodes of earlier requests stand open in STATE from the start. Their evidence "
    'can\'t be opened, and "state_focus" always stays [].'
)


class AgentWithoutPsa(Agent):
    """See `Agent`; takes the same arguments."""

    def __init__(self, *args: Any, instructions: str = "", **options: Any) -> None:
        super().__init__(*args, instructions=f"{NOTICE}\n{instructions}", **options)

    def _index(self, reader: Reader, head: Head) -> Index:
        return Index(floor=head.index_floor, last_request=head.version)

    def _beginning(self, run: Any) -> Sequence[Event]:
        everything = tuple(node.id for node in self.store.nodes(run.space))
        if not everything:
            return ()
        return (Disclosed(request=run.state.request, step=0, at=self._clock(), granted=everything),)

    def _facts(self, run: Any, room: int) -> StepFacts:
        facts = super()._facts(run, room)
        # What stands in the state from the start doesn't count as seen: nothing was done yet.
        begun = bool(run.state.results) or run.last_shape == "note"
        may_end = begun or self._must_end(run, room) or not len(self.toolbox)
        return dataclasses.replace(facts, openable=(), may_look=False, may_reply=facts.may_reply and may_end)

    def _advice(self, run: Any) -> str:
        if any(isinstance(event, Disclosed) and event.granted for event in run.last_step):
            return "Told to remember: note it. Otherwise: call a tool, with what STATE says."
        return rails.advice(run.state, run.last_step)

    async def _follow(self, run: Any, output: Any, replied: Any) -> None:
        # A profile whose grammar is static lets the model name ids all the same.
        await super()._follow(run, output.model_copy(update={"state_focus": ()}), replied)
