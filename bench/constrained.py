"""Constrained steps of a real model: how many can't be parsed, are cut off, or name what doesn't exist.

Each step has its own random tool set, ids and guards (seeded; the sampling isn't), a short prompt, and temperature 1.0, so that the model
goes where the grammar lets it. Under the guidance profile all counts must be zero at any max_tokens: the bounds are
derived from it. Tools whose shortest call doesn't fit max_tokens are left out of a step, as the error advises.

    steps           steps generated
    unparsable      outputs that are not a step, for whatever reason
    cut_off         outputs that ended at max_tokens
    unknown_ids     ids opened, cited or referred to that the step did not know, and new ids that were taken
    bad_arguments   tool calls that the tool's own validation refused
    tokens          tokens generated; their rate includes the prompts
"""

import argparse
import asyncio
import inspect
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from flowstate_local.completion import Completion, Profile, Sampling
from flowstate_local.engines.base import Engine, complete
from flowstate_local.errors import GrammarError, ToolError
from flowstate_local.grammar import StepFacts, step_constraint
from flowstate_local.nodes import EvidenceId, NodeId
from flowstate_local.protocol import Add, Remove, StepOutput
from flowstate_local.tools import Tool, Toolbox, tool

CONCURRENCY = 32
TOOL_SETS = 40
REQUESTS = (
    "Find a quiet hotel near the station and tell me what two nights cost.",
    "Why did we choose the later train? Open the decision.",
    "Note that the guest is a vegetarian.",
    "Compare 160 + 80 with 275.",
)
PARAMETERS: tuple[tuple[str, Any], ...] = (
    ("city", str),
    ("note", Annotated[str, Field(max_length=20)]),
    ("nights", Annotated[int, Field(ge=1, le=30)]),
    ("count", int),
    ("price", float),
    ("limit", Annotated[float, Field(ge=0, le=500)]),
    ("quiet", bool),
    ("answer", Literal["accept", "decline", "später"]),
    ("tags", list[str]),
    ("scores", Annotated[list[int], Field(min_length=1, max_length=3)]),
    ("prices", dict[str, int]),
    ("code", Annotated[str, Field(pattern="^[A-Z]{2}[0-9]{1,4}$")]),
    ("comment", str | None),
)


@dataclass
class Tally:
    """What a run counted."""

    steps: int = 0
    unparsable: int = 0
    cut_off: int = 0
    unknown_ids: int = 0
    bad_arguments: int = 0
    tokens: int = 0
    longest: int = 0
    """Tokens of the longest step."""
    seconds: float = 0.0
    shapes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    """The first outputs that went wrong."""

    def figures(self) -> dict[str, dict[str, float | str]]:
        """Values with their units."""
        counts = {
            "steps": self.steps,
            "unparsable": self.unparsable,
            "cut_off": self.cut_off,
            "unknown_ids": self.unknown_ids,
            "bad_arguments": self.bad_arguments,
        }
        made: dict[str, dict[str, float | str]] = {
            k: {"value": v, "unit": "steps"} for k, v in counts.items()
        }
        made["tokens"] = {"value": self.tokens, "unit": "tokens"}
        made["longest_step"] = {"value": self.longest, "unit": "tokens"}
        made["rate"] = {"value": round(self.tokens / max(self.seconds, 1e-9), 1), "unit": "tokens/s"}
        return made


def random_tool(rng: random.Random, name: str) -> Tool:
    """A tool of up to four parameters, some of them optional."""

    def act(**arguments: Any) -> str:
        """Do something with these."""
        return str(arguments)

    chosen = rng.sample(PARAMETERS, rng.randint(0, 4))
    needed = rng.randint(0, len(chosen))
    described: Any = act
    described.__annotations__ = dict(chosen)
    described.__signature__ = inspect.Signature(
        [
            inspect.Parameter(
                parameter,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if place < needed else None,
                annotation=annotation,
            )
            for place, (parameter, annotation) in enumerate(chosen)
        ]
    )
    return tool(name=name)(act)


def random_facts(rng: random.Random) -> StepFacts:
    """Ids and guards as the loop might give them; always one shape is left."""
    nodes = [NodeId(f"n{i}") for i in range(1, rng.choice([0, 3, 20, 100]) + 1)]
    evidence = [EvidenceId(f"t{i}") for i in range(1, rng.randint(0, 12) + 1)]
    own = rng.randint(0, min(3, len(nodes)))
    pages = [f"{i}#2" for i in evidence[:2]]
    return StepFacts(
        openable=rng.sample(
            [*nodes, *evidence, *pages, "r1", "s1_10"], rng.randint(0, len(nodes) + len(evidence))
        ),
        resolvable=nodes,
        replaceable=rng.sample(nodes, rng.randint(0, len(nodes))),
        evidence=evidence,
        own=nodes[len(nodes) - own :],
        next_number=len(nodes) + 1,
        may_record=rng.random() < 0.9,
        fresh=rng.random() < 0.5,
        again=rng.random() < 0.2,
        may_note=rng.random() < 0.7,
        may_look=rng.random() < 0.8,
        may_act=rng.random() < 0.8,
        defer="strict" if rng.random() < 0.7 else "trust",
    )


def judge(completion: Completion, toolbox: Toolbox, facts: StepFacts, tally: Tally) -> None:
    """Count one completion."""
    tally.steps += 1
    tally.tokens += completion.generated_tokens
    tally.longest = max(tally.longest, completion.generated_tokens)
    tally.cut_off += completion.finish_reason == "length"
    try:
        output = StepOutput.model_validate_json(completion.text)
    except ValidationError:
        tally.unparsable += 1
        tally.examples.append(f"{completion.finish_reason}: {completion.text}")
        return
    tally.shapes[output.shape] += 1
    strange = not ids_are_known(output, facts)
    refused = any(not is_bound(toolbox, call.name, call.arguments) for call in output.tool_calls)
    tally.unknown_ids += strange
    tally.bad_arguments += refused
    tally.unparsable += completion.finish_reason not in ("stop", "length") or output.shape == "empty"
    if strange or refused:
        tally.examples.append(completion.text)


def ids_are_known(output: StepOutput, facts: StepFacts) -> bool:
    """Whether every id of a step exists, and every new one is free."""
    known: set[str] = set(facts.resolvable)
    for operation in output.state_delta:
        if not isinstance(operation, Add) and operation.id not in facts.own:
            return False
        if isinstance(operation, Remove):
            continue
        if isinstance(operation, Add) and operation.id in known:
            return False
        if not all(ref.target in known for ref in operation.refs or ()):
            return False
        replaced = {ref.target for ref in operation.refs or () if ref.relation == "supersedes"}
        if not replaced <= set(facts.replaceable):
            return False
        if not set(operation.evidence or ()) <= set(facts.evidence):
            return False
        known.add(operation.id)
    return set(output.state_focus) <= set(facts.openable)


def is_bound(toolbox: Toolbox, name: str, arguments: dict[str, Any]) -> bool:
    """Whether the tool exists and takes these arguments."""
    chosen = toolbox.get(name)
    if chosen is None:
        return False
    try:
        chosen.bind(arguments)
    except ToolError:
        return False
    return True


def fitting(profile: Profile, tools: list[Tool], max_tokens: int) -> Toolbox:
    """The tools whose shortest call fits."""
    while True:
        toolbox = Toolbox(tools)
        try:
            for defer in ("strict", "trust"):
                facts = StepFacts(["x" * 8] * 4, next_number=1_000, defer=defer)
                step_constraint(profile, toolbox, facts, max_tokens)
        except GrammarError as error:
            tools = [one for one in tools if one.name != error.tool]
        else:
            return toolbox


async def run(
    engine: Engine,
    *,
    steps: int,
    max_tokens: int,
    seed: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Tally:
    """Generate `steps` steps, `CONCURRENCY` at a time, and count what went wrong."""
    rng = random.Random(seed)
    boxes = [
        fitting(
            engine.profile, [random_tool(rng, f"tool_{i}_{k}") for k in range(rng.randint(0, 5))], max_tokens
        )
        for i in range(TOOL_SETS)
    ]
    frame, encode, encode_frame = (
        engine.tokenizer.frame,
        engine.tokenizer.encode,
        engine.tokenizer.encode_frame,
    )
    jobs = [(rng.choice(boxes), random_facts(rng), rng.choice(REQUESTS)) for _ in range(steps)]
    tally, gate, started = Tally(), asyncio.Semaphore(CONCURRENCY), time.monotonic()

    async def step(box: Toolbox, facts: StepFacts, request: str) -> None:
        async with gate:
            prompt = encode_frame(frame.system_open) + encode(
                f"You are an agent. Answer in JSON.\n{box.canonical}\n"
            )
            prompt += encode_frame(frame.user_open) + encode(request) + encode_frame(frame.reply_open)
            constraint = step_constraint(engine.profile, box, facts, max_tokens)
            # No seed per step: on a CPU, vLLM 0.32 dies of one as soon as it splits a prefill.
            sampling = Sampling(temperature=1.0, max_tokens=max_tokens)
            judge(await complete(engine, prompt, constraint, sampling), box, facts, tally)
            if progress is not None:
                progress(tally.steps)

    await asyncio.gather(*(step(*job) for job in jobs))
    tally.seconds = time.monotonic() - started
    return tally


async def measure(options: argparse.Namespace) -> None:
    """Start vLLM, run, print."""
    from flowstate_local.engines.vllm import VllmEngine
    from flowstate_local.models import resolve

    engine = await VllmEngine.start(
        str(resolve(options.model)), profile=options.profile, context_window=2_048, kv_space_gib=0.5
    )
    try:
        tally = await run(engine, steps=options.steps, max_tokens=options.max_tokens, seed=options.seed)
    finally:
        await engine.close()
    print(
        f"{options.steps} steps of {options.model} under {options.profile}, max_tokens {options.max_tokens}:"
    )
    for name, figure in tally.figures().items():
        print(f"  {name:14} {figure['value']} {figure['unit']}")
    print(f"  {'shapes':14} {dict(tally.shapes)}")
    for example in tally.examples[:5]:
        print(f"  {example[:500]}")
    print(json.dumps({"name": "constrained", "figures": tally.figures()}))


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--profile", default="guidance", choices=["guidance", "xgrammar", "outlines"])
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
