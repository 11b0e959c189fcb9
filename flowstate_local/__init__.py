"""An LLM agent whose execution state is its memory, on your own machine.

Engines are imported from their own modules, because each needs a heavy library:
`flowstate_local.engines.vllm`, `.server`, `.transformers`.
"""

from flowstate_local.completion import Sampling
from flowstate_local.errors import (
    EngineError,
    FlowStateError,
    GrammarError,
    ModelError,
    StoreError,
    ToolError,
    UsageError,
)
from flowstate_local.loop import Agent, RequestResult, StepTrace
from flowstate_local.nodes import Node, Ref
from flowstate_local.protocol import StepOutput, ToolCall
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.tools import Tool, Toolbox, ToolContext, tool

__all__ = [
    "Agent",
    "EngineError",
    "FlowStateError",
    "GrammarError",
    "LmdbStore",
    "MemoryStore",
    "ModelError",
    "Node",
    "Ref",
    "RequestResult",
    "Runner",
    "Sampling",
    "StepOutput",
    "StepTrace",
    "StoreError",
    "TaskManager",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "Toolbox",
    "UsageError",
    "tool",
]
