"""FlowState itself as a method under test: the agent of the product, unchanged, in a store of its own."""

import json
from collections.abc import Iterable

from flowstate_local.baselines.base import Answer, Cause, Setting, Usage
from flowstate_local.errors import PromptTooLong
from flowstate_local.events import DeltaCommitted, Disclosed, Event, ModelReplied
from flowstate_local.loop import Agent, StepTrace
from flowstate_local.protocol import StepOutput
from flowstate_local.state import first_page
from flowstate_local.stores.base import Store

SPACE = "episode"


RAW_STEPS = 4
"""Steps of the variant with a raw buffer."""


class FlowState:
    """See `base.Method`.

    Args:
        setting: engine, tools, budget and instructions.
        store: an empty store.
        raw_steps: steps in the raw buffer.
        agent: the agent, or an ablation of it.
    """

    def __init__(
        self, setting: Setting, store: Store, *, raw_steps: int = 0, agent: type[Agent] = Agent
    ) -> None:
        budget = setting.budget
        self._agent = agent(
            setting.engine,
            store,
            setting.toolbox,
            instructions=setting.instructions,
            sampling=budget.sampling,
            max_steps=budget.max_steps,
            index_tokens=budget.memory_tokens,
            raw_steps=raw_steps,
            on_step=self._note,
        )
        self._traces: list[StepTrace] = []
        self._asked = 0

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        """See `Method.ask`."""
        self._asked += 1
        self._traces = []
        try:
            result = await self._agent.run(text, space=SPACE, date=date)
        except PromptTooLong as error:
            return Answer("overflow", str(error), ())
        events = [event for trace in self._traces for event in trace.events]
        opened = [i for e in events if isinstance(e, Disclosed) and e.step for i in e.granted]
        return Answer(
            outcome=result.outcome,
            message=result.message,
            usage=tuple(self._usage(trace) for trace in self._traces),
            refused_operations=sum(len(e.refused) for e in events if isinstance(e, DeltaCommitted)),
            refused_accesses=sum(len(e.refused) for e in events if isinstance(e, Disclosed)),
            looks=len(opened),
            useless_looks=len(set(map(first_page, opened)) - _used(events)),
        )

    async def close(self) -> None:
        """See `Method.close`."""

    def _note(self, trace: StepTrace) -> None:
        self._traces.append(trace)

    def _usage(self, trace: StepTrace) -> Usage:
        completion, replied = trace.completion, trace.events[0]
        return Usage(
            request=self._asked,
            step=trace.step,
            segments=dict(trace.prompt.segments),
            cached_tokens=completion.cached_tokens,
            generated_tokens=completion.generated_tokens,
            total_s=completion.total_s,
            cause=_cause(trace.output),
            fault=replied.fault if isinstance(replied, ModelReplied) else "",
            blocks=self._blocks(trace.output),
        )

    def _blocks(self, output: StepOutput | None) -> dict[str, int]:
        if output is None:
            return {}
        encode = self._agent.engine.tokenizer.encode
        dumped = output.model_dump(mode="json", exclude_defaults=True)
        return {name: len(encode(json.dumps(value, ensure_ascii=False))) for name, value in dumped.items()}


def _cause(output: StepOutput | None) -> Cause:
    if output is None:
        return "retry"
    causes: dict[str, Cause] = {"look": "psa", "note": "isu"}
    return causes.get(output.shape, "step")


def _used(events: Iterable[Event]) -> set[str]:
    """Ids that the nodes of a request refer to or cite."""
    nodes = [n for e in events if isinstance(e, DeltaCommitted) for n in (*e.added, *e.updated)]
    return {ref.target for node in nodes for ref in node.refs} | {e for node in nodes for e in node.evidence}
