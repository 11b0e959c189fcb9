"""Workflow files: what is refused and where, what they compile to, and the two worked examples."""

import asyncio
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstate_local import Agent, MemoryStore
from flowstate_local.errors import WorkflowError
from flowstate_local.task_events import AgentAction, RetryRule, TaskAction, ToolAction
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import examples
from flowstate_local.tasks.examples.tools import toolbox as example_tools
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.workflow import Template, check, load, loads
from flowstate_local.tasks.workflow_file import json_schema
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox, tool

EXAMPLES = Path(examples.__file__).parent


@tool(idempotent=True)
def number(n: int, label: str = "") -> int:
    """Give a number back."""
    return n


@tool(idempotent=True)
def words(text: str) -> dict[str, list[str]]:
    """Split a text."""
    return {"words": text.split()}


TOOLS = Toolbox([number, words])

WHOLE = """\
name: whole
goal: everything once
params:
  city: {type: string, default: Rome}
  n: {type: integer}
planner: model
parallel: 2
steps:
  a:
    title: first
    tool: number
    with: {n: "${params.n}"}
    timeout: 500ms
    retry:
      - {kinds: [timeout, busy], then: now, times: 5}
      - {kinds: "*", then: later, delay: 2m, factor: 3, max_delay: 1h, jitter: 0}
    fallback: spare
    optional: true
    undo: {tool: number, with: {n: "${output}"}}
    probe: {tool: words, with: {text: "${key}"}}
  spare:
    tool: number
    with: {n: 1}
  ask:
    agent: "Is ${steps.a.output} enough for ${params.city}?"
    space: other
    date: 2026-12-01
    needs: [a]
  sub:
    task:
      name: inner
      params: {x: {type: string}}
      steps:
        only: {tool: words, with: {text: "${params.x}"}}
      result: "${steps.only.output}"
    with: {x: "${steps.ask.output}"}
result: {words: "${steps.sub.output}", n: "${steps.a.output}"}
"""


def test_everything_a_file_can_say() -> None:
    template = loads(WHOLE, TOOLS)
    steps = {s.name: s for s in template.spec.steps}
    assert list(steps) == ["a", "spare", "ask", "sub"]
    a = steps["a"]  # type: ignore[index]
    assert a.action == ToolAction(tool="number", arguments={"n": "${params.n}"})
    assert (a.timeout_s, a.fallback, a.optional, a.title) == (0.5, "spare", True, "first")
    assert a.retry == (
        RetryRule(kinds=("timeout", "busy"), then="now", times=5),
        RetryRule(then="later", delay_s=120.0, factor=3.0, max_delay_s=3_600.0, jitter=0.0),
    )
    assert a.undo is not None
    assert a.probe is not None
    ask = steps["ask"]  # type: ignore[index]
    assert ask.action == AgentAction(
        request="Is ${steps.a.output} enough for ${params.city}?", space="other", date="2026-12-01"
    )
    assert ask.needs == ("a",)
    sub = steps["sub"]  # type: ignore[index]
    assert isinstance(sub.action, TaskAction)
    assert (sub.action.workflow.name, sub.needs) == ("inner", ("ask",))
    assert (template.spec.planner, template.spec.parallel) == ("model", 2)


def one(steps: str, more: str = "") -> str:
    return f"name: w\n{more}steps:\n{steps}"


BAD: dict[str, tuple[str, int, str]] = {
    "nothing": ("", 1, "a workflow is a mapping"),
    "a list": ("- a\n", 1, "a workflow is a mapping"),
    "not YAML": ("name: w\nsteps: {a: [}\n", 2, "not YAML"),
    "tabs": ("name: w\nsteps:\n\ta: 1\n", 3, "not YAML"),
    "no name": ("steps: {a: {tool: number}}\n", 1, "name: field required"),
    "no steps": ("name: w\nsteps: {}\n", 2, "steps: dictionary should have at least 1 item"),
    "unknown field": (one("  a: {tool: number, with: {n: 1}}\n", "colour: red\n"), 2, "colour: there is no such field"),
    "unknown field of a step": (one("  a:\n    tool: number\n    wiht: {n: 1}\n"), 5, "there is no such field"),
    "duplicate step": (one("  a: {tool: number}\n  b: {tool: number}\n  a: {tool: number}\n"), 5, "'a' stands here twice"),
    "duplicate argument": (one("  a: {tool: number, with: {n: 1, n: 2}}\n"), 3, "'n' stands here twice"),
    "bad name": (one("  A-b: {tool: number}\n"), 3, "can't be the name of a step"),
    "two kinds": (one("  a:\n    tool: number\n    agent: hi\n"), 3, "exactly one of tool, agent and task, not tool and agent"),
    "no kind": (one("  a: {title: x}\n"), 3, "not none of them"),
    "bad duration": (one("  a:\n    tool: number\n    timeout: soon\n"), 5, "is no duration"),
    "no time at all": (one("  a:\n    tool: number\n    timeout: 0\n"), 5, "a timeout of 0"),
    "hands over to nobody": (one("  a:\n    tool: number\n    retry:\n      - {then: fallback}\n"), 5, "hands over to a fallback, and there is none"),
    "bad times": (one("  a:\n    tool: number\n    retry:\n      - {times: 0}\n"), 6, "greater than or equal to 1"),
    "cycle": (one("  a:\n    tool: number\n    needs: [c]\n  b: {tool: number, needs: [a]}\n  c: {tool: number, needs: [b]}\n"), 5, "steps need each other: a -> c -> b -> a"),
    "itself": (one("  a:\n    tool: number\n    needs: [a]\n"), 5, "a -> a"),
    "cycle by reference": (one('  a: {tool: number, with: {n: "${steps.b.output}"}}\n  b: {tool: number, with: {n: "${steps.a.output}"}}\n'), 3, "a -> b -> a"),
    "cycle by fallback": (one("  a:\n    tool: number\n    needs: [b]\n    fallback: s\n  b: {tool: number, needs: [c]}\n  c: {tool: number, needs: [a]}\n  s: {tool: number}\n"), 5, "steps need each other"),
    "own fallback": (one("  a:\n    tool: number\n    fallback: a\n"), 3, "a -> a"),
    "unknown need": (one("  a:\n    tool: number\n    needs:\n      - z\n"), 5, "needs 'z', which is no step"),
    "unknown fallback": (one("  a:\n    tool: number\n    fallback: z\n"), 5, "the fallback 'z' of a is no step"),
    "needs a stand-in": (one("  a: {tool: number, fallback: s}\n  s: {tool: number}\n  b:\n    tool: number\n    needs: [s]\n"), 7, "only stands in for a"),
    "dangling step": (one('  a:\n    tool: number\n    with:\n      n: "${steps.z.output}"\n'), 6, "refers to a step that is not there; steps: a"),
    "dangling in a request": (one('  a:\n    title: x\n    agent: "${steps.z.output}"\n'), 5, "refers to a step that is not there"),
    "refers to a stand-in": (one('  a: {tool: number, fallback: s}\n  s: {tool: number}\n  b:\n    tool: number\n    with:\n      n: "${steps.s.output}"\n'), 8, "b needs s, which only stands in for a"),
    "fallback needs its owner": (one('  a: {tool: number, with: {n: 1}, fallback: s}\n  s: {tool: words, with: {text: "${steps.a.error.message}"}}\n'), 3, "a -> s -> a"),
    "fallback needs its owner from afar": (one("  a: {tool: number, fallback: s}\n  c: {tool: number, needs: [a]}\n  s: {tool: number, needs: [c]}\n"), 3, "a -> s -> c -> a"),
    "fallbacks of each other": (one("  a: {tool: number, fallback: b}\n  b: {tool: number, fallback: a}\n"), 3, "a -> b -> a"),
    "dangling in result": (one("  a: {tool: number}\n") + 'result:\n  x: "${steps.z.output}"\n', 5, "refers to a step that is not there"),
    "dangling param": (one('  a:\n    tool: number\n    with:\n      n: "${params.z}"\n'), 6, "parameter that is not declared; declared: none"),
    "malformed": (one('  a:\n    tool: number\n    with:\n      n: "${nope}"\n'), 6, "is not a reference"),
    "not closed": (one('  a:\n    tool: words\n    with:\n      text: "${task.id"\n'), 6, "a ${ without its }"),
    "output outside undo": (one('  a:\n    tool: number\n    with:\n      n: "${output}"\n'), 6, "in undo and probe only"),
    "arguments of an agent": (one("  a:\n    agent: hi\n    with: {n: 1}\n"), 5, "an agent takes no `with`"),
    "unknown tool": (one("  a:\n    tool: nmber\n"), 4, "there is no tool 'nmber'; tools: number, words"),
    "unknown tool of undo": (one("  a:\n    tool: number\n    with: {n: 1}\n    undo:\n      tool: gone\n"), 7, "there is no tool 'gone'"),
    "unknown argument": (one("  a:\n    tool: number\n    with:\n      n: 1\n      m: 2\n"), 7, "takes no argument 'm'; it takes n, label"),
    "missing argument": (one("  a:\n    tool: number\n    with: {label: x}\n"), 5, "needs the argument 'n'"),
    "literal of the wrong type": (one("  a:\n    tool: number\n    with:\n      n: many\n"), 6, "argument n of number: \"many\""),
    "text where a number is wanted": (one('  a:\n    tool: number\n    with:\n      n: "no ${task.id}"\n'), 6, "is string, and integer is wanted"),
    "output of the wrong type": (one('  a: {tool: words, with: {text: x}}\n  b:\n    tool: number\n    with:\n      n: "${steps.a.output}"\n'), 7, "${steps.a.output} is object, and integer is wanted"),
    "inside of the wrong type": (one('  a: {tool: number, with: {n: 1}}\n  b:\n    tool: words\n    with:\n      text: "${steps.a.output}"\n'), 7, "is integer, and string is wanted"),
    "reply of an agent": (one('  a: {agent: hi}\n  b:\n    tool: number\n    with:\n      n: "${steps.a.output}"\n'), 7, "is string, and integer is wanted"),
    "param of the wrong type": (one('  a:\n    tool: number\n    with:\n      n: "${params.s}"\n', "params: {s: {type: string, default: x}}\n"), 7, "is string, and integer is wanted"),
    "default of the wrong type": (one("  a: {tool: number, with: {n: 1}}\n", "params:\n  n:\n    type: integer\n    default: x\n"), 5, 'parameter n: "x" is no integer'),
    "no such file": (one("  a:\n    task: nowhere.yaml\n"), 4, "there is no file nowhere.yaml"),
    "param of a sub-task": (one("  a:\n    task: {name: i, steps: {b: {tool: words, with: {text: x}}}}\n    with: {x: 1}\n"), 5, "i has no parameter 'x'"),
    "missing param of a sub-task": (one("  a:\n    task: {name: i, params: {x: {}}, steps: {b: {tool: words, with: {text: x}}}}\n"), 3, "i needs the parameter 'x'"),
    "fault in a sub-task": (one("  a:\n    task:\n      name: i\n      steps:\n        b:\n          tool: gone\n"), 8, "there is no tool 'gone'"),
    "infinity": (one("  a:\n    tool: number\n    with: {n: .inf}\n"), 5, "no JSON number"),
    "a Python object": (one('  a:\n    tool: !!python/object/apply:os.system ["true"]\n'), 4, "has no place in a workflow"),
    "merge keys": (one("  a: &x {tool: number}\n  b:\n    <<: *x\n"), 5, "merge keys"),
    "a value that holds itself": ("name: w\nsteps: &s\n  a: *s\n", 1, "holds itself"),
    "too deep": ("name: w\nx: " + "[" * 5_000 + "]" * 5_000 + "\n", 1, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_file_is_refused_with_its_line(name: str) -> None:
    text, line, message = BAD[name]
    with pytest.raises(WorkflowError) as caught:
        loads(text, TOOLS, name="bad.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"bad.yaml:{caught.value.line}: ")
    assert caught.value.line == line


def test_aliases_that_stand_for_billions_are_refused_at_once() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(WorkflowError, match="aliases counted each time"):
        loads("\n".join(lines))


def test_a_file_of_megabytes_is_refused() -> None:
    with pytest.raises(WorkflowError, match="larger than"):
        loads("name: w\ngoal: " + "x" * 1_000_001)


def test_a_file_that_includes_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(one("  s: {task: b.yaml}\n"))
    (tmp_path / "b.yaml").write_text(one("  s: {task: a.yaml}\n"))
    with pytest.raises(WorkflowError, match=r"includes itself: a\.yaml -> b\.yaml -> a\.yaml"):
        load(tmp_path / "a.yaml")


def test_a_file_without_end_is_refused() -> None:
    with pytest.raises(WorkflowError, match=r"^/dev/zero:1: the file is larger than"):
        load("/dev/zero")


def test_a_fallback_may_stand_in_for_two_steps() -> None:
    text = one(
        "  a: {tool: number, with: {n: 1}, fallback: s}\n"
        '  b: {tool: number, with: {n: "${steps.a.output}"}, fallback: s}\n'
        '  s: {tool: words, with: {text: "$${literal}"}}\n'
    )
    assert loads(text, TOOLS).spec.stands_in_for == {"s": ("a", "b")}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(WorkflowError, match="can't be read"):
        load(tmp_path / "a.yaml")


def test_words_of_yaml_that_are_no_words_elsewhere() -> None:
    text = one(
        "  a:\n    tool: words\n    with: {text: 2026-12-01}\n    retry: {kinds: timeout, then: now}\n"
    )
    spec = loads(text, TOOLS).spec
    assert spec.steps[0].action == ToolAction(tool="words", arguments={"text": "2026-12-01"})
    assert spec.steps[0].retry[0].kinds == ("timeout",)


def test_a_workflow_made_in_python_is_checked_alike() -> None:
    template = loads(
        one("  a: {tool: number, with: {n: 1}}\n  b: {tool: number, with: {n: 2}, needs: [a]}\n")
    )
    check(template.spec, TOOLS)
    a, b = template.spec.steps
    bad = template.spec.model_copy(update={"steps": (a.model_copy(update={"needs": ("b",)}), b)})
    with pytest.raises(WorkflowError, match="workflow w: steps need each other: a -> b -> a"):
        check(bad)
    with pytest.raises(WorkflowError, match="there is no tool"):
        check(template.spec, Toolbox([words]))
    with pytest.raises(WorkflowError, match="two steps have one name"):
        check(template.spec.model_copy(update={"steps": (a, a)}))
    with pytest.raises(WorkflowError, match="there are no steps"):
        check(template.spec.model_copy(update={"steps": ()}))
    with pytest.raises(WorkflowError, match="'B b' can't be the name of a step"):
        check(template.spec.model_copy(update={"steps": (a, b.model_copy(update={"name": "B b"}))}))
    refers = ToolAction(tool="number", arguments={"n": "${steps.b.output}"})
    with pytest.raises(WorkflowError, match="step a refers to b and doesn't need it"):
        check(template.spec.model_copy(update={"steps": (a.model_copy(update={"action": refers}), b)}))
    inside = a.model_copy(update={"action": TaskAction(workflow=bad.model_copy(update={"name": "inner"}))})
    with pytest.raises(WorkflowError, match="workflow inner: steps need each other"):
        check(template.spec.model_copy(update={"steps": (inside, b)}))


# --- parameters ---------------------------------------------------------------------------------------------

PARAMS = loads(
    one("  a: {tool: number, with: {n: 1}}\n", "params: {s: {type: string}, n: {type: integer, default: 3}, o: {type: object, required: false}}\n")
)  # fmt: skip


def test_defaults_are_filled_in() -> None:
    assert PARAMS.bind({"s": "x"}) == {"s": "x", "n": 3, "o": None}
    assert PARAMS.bind({"s": "x", "n": 4, "o": {"k": 1}}) == {"s": "x", "n": 4, "o": {"k": 1}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs the parameter 's'"),
        ({"s": "x", "z": 1}, "has no parameter 'z'; it has s, n, o"),
        ({"s": 1}, "parameter s: 1 is no string"),
        ({"s": "x", "n": True}, "parameter n: true is no integer"),
        ({"s": "x", "n": 1.5}, "is no integer"),
        ({"s": "x", "o": []}, "is no object"),
    ],
)
def test_bad_parameters_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkflowError, match=message):
        PARAMS.bind(given)


# --- properties ---------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    names = [f"s{i}" for i in range(draw(st.integers(1, 12)))]
    edges = [
        (n, draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else []) for i, n in enumerate(names)
    ]
    return draw(st.permutations(edges))


def as_yaml(edges: list[tuple[str, list[str]]]) -> str:
    return yaml.safe_dump(
        {
            "name": "g",
            "steps": {n: {"tool": "number", "with": {"n": 1}, "needs": needs} for n, needs in edges},
        }
    )


@settings(deadline=None)
@given(edges=graphs(), data=st.data())
def test_any_acyclic_graph_loads_and_any_cycle_is_found(
    edges: list[tuple[str, list[str]]], data: st.DataObject
) -> None:
    assert {s.name: list(s.needs) for s in loads(as_yaml(edges), TOOLS).spec.steps} == dict(edges)
    # An edge back from what a step leads to makes a cycle.
    first, last = data.draw(st.sampled_from(edges)), data.draw(st.sampled_from(edges))
    before: dict[str, set[str]] = {}
    for name, needs in sorted(edges, key=lambda edge: int(edge[0][1:])):
        before[name] = {name, *needs, *(far for need in needs for far in before[need])}
    if first[0] in before[last[0]]:
        back = [
            (n, [*needs, last[0]] if n == first[0] and last[0] not in needs else needs) for n, needs in edges
        ]
        with pytest.raises(WorkflowError, match="steps need each other"):
            loads(as_yaml(back), TOOLS)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=200))
def test_any_text_is_a_typed_error(text: str) -> None:
    with pytest.raises(WorkflowError, match="^<text>:[0-9]+: "):
        loads(text)


# --- the examples -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["market_report", "trip_review"])
def test_the_examples_are_right_and_fit_the_published_schema(name: str) -> None:
    template = load(EXAMPLES / f"{name}.yaml", example_tools)
    assert isinstance(template, Template)
    content = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    jsonschema.Draft202012Validator(json_schema()).validate(content)


def test_the_schema_refuses_what_the_loader_refuses() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.check_schema(json_schema())
    assert validator.is_valid(yaml.safe_load(WHOLE.replace("2026-12-01", "'2026-12-01'")))
    for name in (
        "no steps",
        "no name",
        "unknown field",
        "unknown field of a step",
        "bad duration",
        "bad times",
    ):
        assert not validator.is_valid(yaml.safe_load(BAD[name][0])), name
    json.dumps(json_schema())


def test_the_market_report_survives_its_bad_sources() -> None:
    template = load(EXAMPLES / "market_report.yaml", example_tools)
    manager = TaskManager[Any](MemoryStore(), "s")
    manager.create(template.spec, template.bind({"days": 2}), task="t")
    state: TaskState = asyncio.run(Runner(manager, example_tools).run("t"))
    assert state.status == "completed"
    result = manager.load(state.result)
    assert result["report"].splitlines() == [
        "The market of tea",
        "- A dry spring in Assam",
        "- Auction volumes up by a tenth",
        "Prices went from 3.1 to 3.4.",
        "The public: unknown (the network does not answer).",
    ]
    assert {n: s.status for n, s in state.steps.items() if s.status != "completed"} == {
        "prices": "failed",
        "social": "failed",
    }


def test_the_trip_review_asks_the_agent_between_tools() -> None:
    template = load(EXAMPLES / "trip_review.yaml", example_tools)
    store = MemoryStore()
    manager = TaskManager[Any](store, "s")
    engine = ScriptedEngine([step(message="No: 160 and 80 are more than 200.")])
    manager.create(template.spec, template.bind({}), task="t")
    agent = Agent(engine, store, [])
    state: TaskState = asyncio.run(Runner(manager, example_tools, agent=agent).run("t"))
    assert "Hotel Belmar costs 160 dollars" in engine.prompts[0]
    assert manager.load(state.result).endswith("about Hotel Aurora: No: 160 and 80 are more than 200.")
