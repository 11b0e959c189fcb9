"""FlowState itself as a method under test: the agent of the product, unchanged, in a store of its own."""

from flowstate_local.baselines.base import Answer, Setting, Usage
from flowstate_local.errors import PromptTooLong
from flowstate_local.events import DeltaCommitted, Disclosed
from flowstate_local.loop import Agent, StepTrace
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
        return Answer(
            outcome=result.outcome,
            message=result.message,
            usage=tuple(self._usage(trace) for trace in self._traces),
            refused=sum(
                len(event.refused)
                for trace in self._traces
                for event in trace.events
                if isinstance(event, DeltaCommitted | Disclosed)
            ),
        )

    async def close(self) -> None:
        """See `Method.close`."""

    def _note(self, trace: StepTrace) -> None:
        self._traces.append(trace)

    def _usage(self, trace: StepTrace) -> Usage:
        completion = trace.completion
        fault = (
            ""
            if trace.output is not None
            else "cut_off"
            if completion.finish_reason == "length"
            else "unparsable"
        )
        return Usage(
            request=self._asked,
            step=trace.step,
            segments=dict(trace.prompt.segments),
            cached_tokens=completion.cached_tokens,
            generated_tokens=completion.generated_tokens,
            total_s=completion.total_s,
            fault=fault,
        )
