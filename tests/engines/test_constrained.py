"""A thousand constrained steps of a real model at temperature 1.0: none unparsable, cut off, or naming the unknown.

FLOWSTATE_CONSTRAINED_STEPS sets another number.
"""

import os
import sys
from pathlib import Path

import pytest

from flowstate_local.engines.base import Engine

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import constrained

STEPS = int(os.environ.get("FLOWSTATE_CONSTRAINED_STEPS", "1000"))


@pytest.mark.anyio
@pytest.mark.engine
@pytest.mark.parametrize("engine", ["vllm"], indirect=True, scope="session")
@pytest.mark.parametrize("max_tokens", [320, 200])
async def test_no_constrained_step_goes_wrong(engine: Engine, max_tokens: int) -> None:
    tally = await constrained.run(engine, steps=STEPS, max_tokens=max_tokens)
    assert tally.steps == STEPS
    assert (tally.unparsable, tally.cut_off, tally.unknown_ids) == (0, 0, 0), tally.examples[:3]
    assert min(tally.shapes[shape] for shape in ("look", "act", "reply")) > 0, tally.shapes
