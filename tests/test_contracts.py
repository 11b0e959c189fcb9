"""What others rely on, held against files: public names, schemas, and every word that a model reads."""

import importlib.util
from pathlib import Path

import pytest

import flowstate_local
from flowstate_local.completion import Completion
from flowstate_local.loop import Agent, StepTrace
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import tool

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"


def test_the_public_names() -> None:
    names = [n for n in vars(flowstate_local) if not n.startswith("_") and n[0].isupper()] + ["tool"]
    assert sorted(flowstate_local.__all__) == sorted(names)
    assert len(flowstate_local.__all__) <= 25


def test_the_exported_schemas_are_those_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("export_schemas", ROOT / "scripts" / "export_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, schema in module.schemas().items():
        assert (ROOT / "schemas" / name).read_text() == module.dump(schema), (
            f"run scripts/export_schemas.py: {name}"
        )


@tool(idempotent=True)
def look_up(word: str, times: int = 1) -> str:
    """Look a word up.

    Args:
        word: The word.
        times: How often.
    """
    return " ".join([word] * times)


@pytest.mark.anyio
async def test_the_prompts_are_these_words() -> None:
    """One request with everything in it: opened node and evidence, refusal, fault, pages, folded history."""
    script = [
        step(calls=[("look_up", {"word": "ox", "times": 100})]),
        step(
            delta=[
                {
                    "type": "knowledge",
                    "id": "n1",
                    "summary": "ox, a hundred times",
                    "refs": [],
                    "evidence": ["t1"],
                },
                {
                    "type": "judgement",
                    "id": "n2",
                    "summary": "enough oxen",
                    "content": "A hundred will do.",
                    "slots": [{"name": "count", "value": "100"}],
                    "refs": [{"relation": "supports", "target": "n1"}],
                    "evidence": [],
                    "valid_until": "2027-01-01",
                    "confidence": 0.5,
                },
            ],
            message="There are a hundred.",
        ),
        step(focus=["n2", "n1"]),
        step(focus=["t1"]),
        step(focus=["n9"], message="too early"),
        Completion("{", (), "length", 1, 0, 1, 0.0, 0.0),
        step(calls=[("look_up", {"word": "cow"}), ("unknown", {})]),
        step(message="done"),
    ]
    traces: list[StepTrace] = []
    engine = ScriptedEngine(script, check=False)
    agent = Agent(engine, MemoryStore(), [look_up], page_chars=200, on_step=traces.append, clock=lambda: 0.0)
    await agent.run("How many oxen?", space="s", date="2026-01-02")
    await agent.run("Is that still so?", space="s", date="2026-01-03")
    static = engine.prompts[0].index("<|user|>")
    assert all(prompt[:static] == engine.prompts[0][:static] for prompt in engine.prompts)
    turns = [f"--- step {i} ---\n{prompt[static:]}" for i, prompt in enumerate(engine.prompts, start=1)]
    check_golden("rules_and_tools.txt", engine.prompts[0][:static])
    check_golden("turns.txt", "".join(turns))


def check_golden(name: str, text: str) -> None:
    """Compare whole; to accept a change, delete the file and run the test twice."""
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was written; look at it, then run again")
    assert text == path.read_text()
