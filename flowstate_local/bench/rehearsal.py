"""A scripted engine for methods that ask the model for more than steps: what a memory's upkeep asks gets a sample."""

from flowstate_local.bench.schema_sample import sample
from flowstate_local.completion import Constraint
from flowstate_local.testing import Reply, ScriptedEngine

STEP_FIELD = '"assistant_message"'
"""Stands in the grammar of every step, of all methods, and in no other."""


class RehearsedEngine(ScriptedEngine):
    """See `ScriptedEngine`. The script holds the steps alone."""

    def _reply(self, prompt: str, constraint: Constraint | None) -> Reply:
        if constraint is not None and STEP_FIELD not in constraint.text:
            return sample(constraint)
        return super()._reply(prompt, constraint)

    @property
    def step_prompts(self) -> list[str]:
        """The prompts of steps, without those of a memory's upkeep."""
        asked = zip(self.prompts, self.constraints, strict=True)
        return [prompt for prompt, constraint in asked if constraint is None or STEP_FIELD in constraint.text]
