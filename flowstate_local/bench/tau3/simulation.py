"""One conversation from beginning to end: the method, the bridge, tau2's orchestrator, and its grades."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.suite import Seat
from flowstate_local.bench.tau3.agent import BridgeAgent
from flowstate_local.bench.tau3.conversation import Conversation
from flowstate_local.bench.tau3.dataset import Domain
from flowstate_local.bench.tau3.upstream import Upstream
from flowstate_local.errors import EngineError, FlowStateError

CALCULATE = (
    "\nThe tool calculate takes one expression of numbers, + - * / and parentheses; it can't compare.\n"
)
"""The methods' own rules teach a calculator that can, and ten failed calls end a conversation."""
ROLE = """You are a customer service agent. Each request is what the customer says next, in one conversation; your reply is sent to the customer. Help the customer, and always follow the policy.

Policy
"""
UserMaker = Callable[[Any], Any]
"""tau2's task -> a user of its half-duplex interface."""


@dataclass(frozen=True)
class Limits:
    """Of one conversation, as in the official protocol (tau2's TextRunConfig)."""

    max_steps: int = 200
    """Messages of either side and tool results."""
    max_errors: int = 10
    """Failed tool calls, all together."""
    timeout_s: float | None = None


@dataclass(frozen=True)
class Simulated:
    """A conversation that has ended."""

    answers: tuple[Answer, ...]
    run: Any
    """tau2's SimulationRun."""
    graded: Any
    """tau2's RewardInfo, without a judge."""
    fallbacks: int
    cut: int
    """Requests that were still running at the end (0 or 1): what they cost isn't in the answers."""


async def simulate(
    tau2: Upstream,
    domain: Domain,
    task_id: str,
    seat: Seat,
    user: UserMaker,
    *,
    seed: int,
    limits: Limits,
) -> Simulated:
    """Play and grade one task.

    Raises:
        EngineError: the method's engine or the user's model failed.
    """
    loop = asyncio.get_running_loop()
    # A thread of its own: tau2 holds it for the whole conversation, and in the shared pool a few conversations would
    # leave no thread for the commits that they wait for.
    threads = ThreadPoolExecutor(1, thread_name_prefix=f"tau3-{domain}-{task_id}")
    try:
        task = await loop.run_in_executor(threads, tau2.task, domain, task_id)
        environment = await loop.run_in_executor(threads, tau2.environment, domain)
        functions = [one.openai_schema["function"] for one in environment.get_tools()]
        instructions = ROLE + environment.get_policy() + CALCULATE
        conversation = Conversation(functions, lambda toolbox: seat(toolbox, instructions))
        agent = BridgeAgent(tau2, conversation, loop)
        try:
            work = functools.partial(
                _run, tau2, domain, task, environment, agent, user, seed=seed, limits=limits
            )
            run, graded = await loop.run_in_executor(threads, work)
        finally:
            await conversation.close()
            await conversation.method.close()
    finally:
        threads.shutdown(wait=False)
    return Simulated(tuple(conversation.answers), run, graded, agent.fallbacks, conversation.cut)


def _run(
    tau2: Upstream,
    domain: Domain,
    task: Any,
    environment: Any,
    agent: BridgeAgent,
    user: UserMaker,
    *,
    seed: int,
    limits: Limits,
) -> tuple[Any, Any]:
    try:
        orchestrator = tau2.Orchestrator(
            domain,
            agent,
            user(task),
            environment,
            task,
            max_steps=limits.max_steps,
            max_errors=limits.max_errors,
            timeout=limits.timeout_s,
            seed=seed,
            validate_communication=True,
        )
        run = orchestrator.run()
        return run, tau2.graded(run, task, domain)
    except FlowStateError:
        raise
    except Exception as error:
        if agent.failure is error:
            raise  # a fault of the method is no accident of the conversation
        raise EngineError(
            f"the conversation of task {task.id} failed: {type(error).__name__}: {error}"
        ) from error
