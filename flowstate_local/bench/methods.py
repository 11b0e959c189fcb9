"""The methods by name, and where each keeps its memory. The only place of the evaluation that knows them all."""

from dataclasses import dataclass
from functools import cache

from flowstate_local.baselines.base import MethodFactory
from flowstate_local.baselines.bm25 import Bm25
from flowstate_local.baselines.embedder import Embedder, minilm
from flowstate_local.baselines.flowstate import RAW_STEPS, FlowState
from flowstate_local.baselines.full_context import FullContext
from flowstate_local.baselines.mem0 import Mem0
from flowstate_local.baselines.react import React
from flowstate_local.baselines.reasoning_bank import MEMORY_ARENA, ORIGINAL, ReasoningBank
from flowstate_local.baselines.without_isu import AgentWithoutIsu
from flowstate_local.baselines.without_psa import AgentWithoutPsa
from flowstate_local.baselines.zipact import ZipAct, ZipActBm25
from flowstate_local.errors import UsageError
from flowstate_local.stores.memory import MemoryStore


@dataclass(frozen=True)
class MethodInfo:
    """One method of the comparison."""

    make: MethodFactory
    about: str
    """What stands in its prompt beside the request."""


@cache
def _embedder() -> Embedder:
    """One for all episodes; it is loaded when the first of them needs it."""
    return minilm()


METHODS: dict[str, MethodInfo] = {
    "flowstate": MethodInfo(
        lambda setting: FlowState(setting, MemoryStore()),
        "index of all state; nodes and raw results opened on demand",
    ),
    "without_isu": MethodInfo(
        lambda setting: FlowState(setting, MemoryStore(), agent=AgentWithoutIsu),
        "ablation: each reply becomes a node by rule; access as in flowstate",
    ),
    "without_psa": MethodInfo(
        lambda setting: FlowState(setting, MemoryStore(), agent=AgentWithoutPsa),
        "ablation: all nodes whole, no raw results",
    ),
    "flowstate_raw": MethodInfo(
        lambda setting: FlowState(setting, MemoryStore(), raw_steps=RAW_STEPS),
        f"flowstate, and the last {RAW_STEPS} steps of the request whole",
    ),
    "full_context": MethodInfo(FullContext, "everything that ever happened"),
    "bm25": MethodInfo(Bm25, "passages of earlier requests that share words with this one"),
    "zipact": MethodInfo(
        ZipAct, "a state of goal, world and constraints, rewritten by the model after each step"
    ),
    "zipact_bm25": MethodInfo(ZipActBm25, "that state, and passages as for bm25"),
    "reasoning_bank": MethodInfo(
        lambda setting: ReasoningBank(setting, _embedder(), ORIGINAL),
        "lessons of one earlier request, judged and written by the model, found by embedding (the original)",
    ),
    "reasoning_bank_memory_arena": MethodInfo(
        lambda setting: ReasoningBank(setting, _embedder(), MEMORY_ARENA),
        "the same as MemoryArena has it: five records, found by what happened",
    ),
    "mem0": MethodInfo(
        lambda setting: Mem0(setting, _embedder()),
        "facts that mem0ai extracts with the same model; needs a window of 12,000 tokens",
    ),
    "none": MethodInfo(React, "nothing: a plain agent, as a floor"),
}


def chosen(names: str) -> dict[str, MethodFactory]:
    """Methods by a list of names, separated by commas; "all" for every one.

    Raises:
        UsageError: an unknown name, or one twice.
    """
    wanted = list(METHODS) if names == "all" else [name.strip() for name in names.split(",")]
    unknown = [name for name in wanted if name not in METHODS]
    if unknown:
        raise UsageError(f"unknown method {unknown[0]!r}", hint=f"Methods: {', '.join(METHODS)}, or all.")
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"a method is named twice in {names!r}")
    return {name: METHODS[name].make for name in wanted}
