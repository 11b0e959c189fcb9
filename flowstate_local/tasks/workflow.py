"""Workflow templates: from a YAML file to a checked `WorkflowSpec`.

template = load("market_report.yaml", toolbox)
manager.create(template.spec, template.bind({"topic": "tea"}))
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from pydantic import JsonValue

from flowstate_local.errors import UsageError, WorkflowError
from flowstate_local.task_events import (
    STEP_NAME,
    AgentAction,
    RetryRule,
    StepName,
    StepSpec,
    TaskAction,
    ToolAction,
    ToolUse,
    WorkflowSpec,
    template_of,
)
from flowstate_local.tasks import workflow_file, workflow_types
from flowstate_local.tasks.references import REFERENCE, references
from flowstate_local.tasks.workflow_file import Param, Path_, Retry, Source, Step, Use, Workflow, dumps, walk
from flowstate_local.tools import Toolbox

Fault = Callable[[str, Path_, str], WorkflowError]
"""Makes the error for a message, the place in the file it is about, and the step."""


@dataclass(frozen=True)
class Template:
    """A workflow that can be run, and the parameters it takes."""

    spec: WorkflowSpec
    params: Mapping[str, Param]

    def bind(self, given: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The parameters of a run: those given, and the defaults of the others.

        Raises:
            WorkflowError: one is unknown, missing, or of another type; names it.
        """
        unknown = sorted(set(given) - set(self.params))
        if unknown:
            known = ", ".join(self.params) or "none"
            raise WorkflowError(f"{self.spec.name} has no parameter {unknown[0]!r}; it has {known}")
        bound: dict[str, JsonValue] = {}
        for name, param in self.params.items():
            if name in given:
                _check_type(name, param, given[name])
            elif _is_required(param):
                raise WorkflowError(f"{self.spec.name} needs the parameter {name!r} ({param.type})")
            bound[name] = given.get(name, param.default)
        return bound


def load(path: str | Path, toolbox: Toolbox | None = None) -> Template:
    """Read a workflow file.

    Args:
        path: of the YAML file; sub-tasks are found relative to it.
        toolbox: the tools that the task will have; None leaves tools and types unchecked.

    Raises:
        WorkflowError: it can't be read or can't run; the message begins with file and line.
    """
    return _load(Path(path), toolbox, ())


def loads(
    text: str, toolbox: Toolbox | None = None, *, name: str = "<text>", folder: Path | None = None
) -> Template:
    """The same from a text; `folder` is where the files of sub-tasks are. Raises WorkflowError."""
    return _compile(Source(text, name), toolbox, folder or Path(), ())


def check(spec: WorkflowSpec, toolbox: Toolbox | None = None) -> None:
    """Check a workflow that was built in Python, and those of its sub-tasks. Raises WorkflowError."""

    def fault(message: str, path: Path_, step: str) -> WorkflowError:
        return WorkflowError(f"workflow {spec.name}: {message}", step=step)

    _check(spec, {}, toolbox, fault, any_params=True)
    for step in spec.steps:
        if isinstance(step.action, TaskAction):
            check(step.action.workflow, toolbox)


def _load(path: Path, toolbox: Toolbox | None, above: tuple[Path, ...]) -> Template:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(workflow_file.MAX_FILE_BYTES + 1)  # enough for Source to refuse it
    except (OSError, UnicodeDecodeError) as error:
        raise WorkflowError(f"{path}: can't be read: {error}") from error
    return _compile(Source(text, str(path)), toolbox, path.parent, (*above, path.resolve()))


def _compile(source: Source, toolbox: Toolbox | None, folder: Path, above: tuple[Path, ...]) -> Template:
    return _compiled(source, source.workflow(), (), toolbox, folder, above)


def _compiled(
    source: Source, file: Workflow, at: Path_, toolbox: Toolbox | None, folder: Path, above: tuple[Path, ...]
) -> Template:
    def fault(message: str, path: Path_, step: str) -> WorkflowError:
        return source.error(message, (*at, *path), step=step)

    def sub_task(name: str, step: Step) -> WorkflowSpec:
        template = _sub_template(source, step, (*at, "steps", name, "task"), toolbox, folder, above)
        _check_sub_params(template, step, name, fault)
        return template.spec

    steps = tuple(_step(name, step, fault, sub_task) for name, step in file.steps.items())
    spec = WorkflowSpec(
        name=file.name,
        goal=file.goal,
        steps=steps,
        result=file.result,
        planner=file.planner,
        parallel=file.parallel,
    )
    for name, param in file.params.items():
        if param.default is not None:
            try:
                _check_type(name, param, param.default)
            except WorkflowError as error:
                raise fault(str(error), ("params", name, "default"), "") from error
    _check(spec, file.params, toolbox, fault, any_params=False)
    return Template(spec, file.params)


# --- compile ------------------------------------------------------------------------------------------------------


def _step(name: str, step: Step, fault: Fault, sub_task: Callable[[str, Step], WorkflowSpec]) -> StepSpec:
    kinds = [kind for kind in ("tool", "agent", "task") if getattr(step, kind) is not None]
    if len(kinds) != 1:
        problem = " and ".join(kinds) if kinds else "none of them"
        raise fault(f"step {name}: exactly one of tool, agent and task, not {problem}", ("steps", name), name)
    if step.timeout == 0:
        raise fault(f"step {name}: a timeout of 0 ends everything at once", ("steps", name, "timeout"), name)
    rules = (step.retry,) if isinstance(step.retry, Retry) else step.retry
    if step.fallback is None and any(rule.then == "fallback" for rule in rules):
        raise fault(
            f"step {name}: a rule hands over to a fallback, and there is none", ("steps", name, "retry"), name
        )
    action = _action(name, step, fault, sub_task)
    try:
        implied = [StepName(r.step) for r in references(_own(action)[1]) if r.step]
    except UsageError as error:
        raise _at_reference(error, step, name, fault) from error
    return StepSpec(
        name=StepName(name),
        action=action,
        title=step.title,
        needs=tuple(dict.fromkeys([*map(StepName, step.needs), *implied])),
        retry=tuple(map(_rule, rules)),
        timeout_s=step.timeout,
        fallback=StepName(step.fallback) if step.fallback else None,
        optional=step.optional,
        undo=_use(step.undo),
        probe=_use(step.probe),
    )


def _action(
    name: str, step: Step, fault: Fault, sub_task: Callable[[str, Step], WorkflowSpec]
) -> ToolAction | AgentAction | TaskAction:
    if step.tool is not None:
        return ToolAction(tool=step.tool, arguments=dict(step.arguments))
    if step.agent is not None:
        if step.arguments:
            raise fault(
                f"step {name}: an agent takes no `with`; write it into the request",
                ("steps", name, "with"),
                name,
            )
        return AgentAction(request=step.agent, space=step.space, date=step.date)
    return TaskAction(workflow=sub_task(name, step), params=dict(step.arguments))


def _rule(retry: Retry) -> RetryRule:
    kinds = (retry.kinds,) if isinstance(retry.kinds, str) else retry.kinds
    return RetryRule(
        kinds=kinds,
        then=retry.then,
        times=retry.times,
        delay_s=retry.delay,
        factor=retry.factor,
        max_delay_s=retry.max_delay,
        jitter=retry.jitter,
    )


def _use(use: Use | None) -> ToolUse | None:
    return None if use is None else ToolUse(tool=use.tool, arguments=dict(use.arguments))


def _own(action: ToolAction | AgentAction | TaskAction) -> tuple[str, JsonValue]:
    """The field of a file whose references a step waits for, and what stands in it."""
    return "agent" if isinstance(action, AgentAction) else "with", template_of(action)


def _at_reference(error: UsageError, step: Step, name: str, fault: Fault) -> WorkflowError:
    """The same error, at the line of the text that holds the bad reference."""
    for value, path in walk({"with": dict(step.arguments), "agent": step.agent}, ("steps", name)):
        try:
            list(references(value))
        except UsageError:
            return fault(f"step {name}: {error}", path, name)
    return fault(f"step {name}: {error}", ("steps", name), name)


def _sub_template(
    source: Source, step: Step, at: Path_, toolbox: Toolbox | None, folder: Path, above: tuple[Path, ...]
) -> Template:
    if isinstance(step.task, Workflow):
        return _compiled(source, step.task, at, toolbox, folder, above)
    path = folder / str(step.task)
    if path.resolve() in above:
        names = " -> ".join(p.name for p in (*above, path))
        raise source.error(f"{path} includes itself: {names}", at, step=str(at[-2]))
    if not path.is_file():
        raise source.error(f"there is no file {path}", at, step=str(at[-2]))
    return _load(path, toolbox, above)


def _check_sub_params(template: Template, step: Step, name: str, fault: Fault) -> None:
    path = ("steps", name, "with")
    for key, value in step.arguments.items():
        if key not in template.params:
            raise fault(f"step {name}: {template.spec.name} has no parameter {key!r}", (*path, key), name)
        if not any("${" in text for text, _ in walk(value, ())):
            try:
                _check_type(key, template.params[key], value)
            except WorkflowError as error:
                raise fault(f"step {name}: {error}", (*path, key), name) from error
    for key, param in template.params.items():
        if key not in step.arguments and _is_required(param):
            raise fault(f"step {name}: {template.spec.name} needs the parameter {key!r}", path, name)


# --- check --------------------------------------------------------------------------------------------------------


def _check(
    spec: WorkflowSpec,
    params: Mapping[str, Param],
    toolbox: Toolbox | None,
    fault: Fault,
    *,
    any_params: bool,
) -> None:
    steps = {step.name: step for step in spec.steps}
    if len(steps) != len(spec.steps):
        raise fault("two steps have one name", ("steps",), "")
    if not steps:
        raise fault("there are no steps", ("steps",), "")
    stand_ins = {step.fallback for step in spec.steps if step.fallback is not None}
    known = None if any_params else params
    for step in spec.steps:
        _check_references(step, steps, known, fault)
        _check_links(step, steps, stand_ins, fault)
    _check_cycles(steps, fault)
    for text, path in walk(spec.result, ("result",)):
        _check_text(text, path, "", steps, known, fault, extra=False)
    if toolbox is not None:
        workflow_types.check(spec, {} if any_params else params, toolbox, fault)


def _check_links(
    step: StepSpec, steps: Mapping[StepName, StepSpec], stand_ins: set[StepName], fault: Fault
) -> None:
    place: Path_ = ("steps", step.name)
    if not STEP_NAME.match(step.name):
        rule = "use a-z, 0-9 and _, and begin with a letter"
        raise fault(f"{step.name!r} can't be the name of a step; {rule}", place, step.name)
    for need in step.needs:
        problem = ""
        if need not in steps:
            problem = f"{need!r}, which is no step; steps: {', '.join(steps)}"
        elif need in stand_ins:
            owner = next(s.name for s in steps.values() if s.fallback == need)
            problem = f"{need}, which only stands in for {owner}; refer to {owner}"
        if problem:
            raise fault(f"step {step.name} needs {problem}", _place_of(step, need), step.name)
    if step.fallback is not None and step.fallback not in steps:
        raise fault(
            f"the fallback {step.fallback!r} of {step.name} is no step", (*place, "fallback"), step.name
        )


def _place_of(step: StepSpec, need: StepName) -> Path_:
    """Where a step says that it needs another one."""
    key, own = _own(step.action)
    texts = walk(own, ("steps", step.name, key))
    said = (path for text, path in texts if need in (r.step for r in references(text)))
    return next(said, ("steps", step.name, "needs"))


def _check_references(
    step: StepSpec, steps: Mapping[StepName, StepSpec], params: Mapping[str, Param] | None, fault: Fault
) -> None:
    place: Path_ = ("steps", step.name)
    key, own = _own(step.action)
    for text, path in walk(own, (*place, key)):
        _check_text(text, path, step.name, steps, params, fault, extra=False)
        for name in (r.step for r in references(text) if r.step and r.step not in step.needs):
            raise fault(f"step {step.name} refers to {name} and doesn't need it", path, step.name)
    for field, use in (("undo", step.undo), ("probe", step.probe)):
        for text, path in walk(dict(use.arguments) if use else {}, (*place, field, "with")):
            _check_text(text, path, step.name, steps, params, fault, extra=True)


def _check_text(
    text: str,
    path: Path_,
    step: str,
    steps: Mapping[StepName, StepSpec],
    params: Mapping[str, Param] | None,
    fault: Fault,
    *,
    extra: bool,
) -> None:
    where = f"step {step}: " if step else "result: "
    try:
        found = list(references(text))
    except UsageError as error:
        raise fault(f"{where}{error}", path, step) from error
    if "${" in REFERENCE.sub("", text):
        raise fault(f"{where}{dumps(text)}: a ${{ without its }}; $${{ is a literal one", path, step)
    for reference in found:
        problem = ""
        if reference.step and reference.step not in steps:
            problem = f"${{{reference.text}}} refers to a step that is not there; steps: {', '.join(steps)}"
        elif reference.root == "params" and params is not None and reference.path[0] not in params:
            known = ", ".join(params) or "none"
            problem = f"${{{reference.text}}} refers to a parameter that is not declared; declared: {known}"
        elif reference.root in ("output", "key") and not extra:
            problem = f"${{{reference.text}}} has a meaning in undo and probe only"
        if problem:
            raise fault(where + problem, path, step)


def _check_cycles(steps: Mapping[StepName, StepSpec], fault: Fault) -> None:
    """A step waits for what it needs, and is not over before its fallback is."""
    before = {name: [*step.needs, *filter(None, [step.fallback])] for name, step in steps.items()}
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        # Each of these comes before the next, and the first is also the last.
        found: list[StepName] = error.args[1][:0:-1]
        start = min(map(list(steps).index, found))
        turn = found.index(list(steps)[start])
        cycle = [*found[turn:], *found[:turn], found[turn]]
        raise fault(
            f"steps need each other: {' -> '.join(cycle)}", ("steps", cycle[0], "needs"), cycle[0]
        ) from None


# --- parameters ---------------------------------------------------------------------------------------------------

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "any": (object,),
}


def _is_required(param: Param) -> bool:
    return param.default is None if param.required is None else param.required


def _check_type(name: str, param: Param, value: JsonValue) -> None:
    fits = isinstance(value, _TYPES[param.type]) and (
        param.type in ("boolean", "any") or not isinstance(value, bool)
    )
    if value is None and not _is_required(param):
        return
    if not fits:
        raise WorkflowError(f"parameter {name}: {dumps(value)} is no {param.type}")
