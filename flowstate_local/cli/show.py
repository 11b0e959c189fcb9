"""How requests, steps, nodes and graphs look in a terminal. Nothing here decides anything."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flowstate_local.events import DeltaCommitted, Disclosed, Event, Refusal, ToolFinished, ToolStarted
from flowstate_local.graph import Branch
from flowstate_local.loop import RequestResult, StepTrace
from flowstate_local.nodes import Node, NodeId
from flowstate_local.repository import Reader

TYPE_COLOUR = {
    "preference": "magenta",
    "knowledge": "cyan",
    "attribute": "blue",
    "judgement": "yellow",
    "artifact": "green",
}
LOOP_RULES = {"deferred", "act_first", "repeated_call"}
"""Rules about the decision, not about an access."""
SHAPE_COLOUR = {"look": "cyan", "act": "green", "reply": "bold white", "note": "yellow"}


def node_markup(node: Node) -> str:
    """One line: id, type, summary."""
    colour = TYPE_COLOUR[node.type]
    return f"[bold {colour}]{node.id}[/] [{colour}]{node.type}[/] {escape(node.summary)}"


def links_markup(node: Node) -> str:
    """Refs and evidence of a node, or the empty string."""
    parts = [f"{ref.relation} [bold]{ref.target}[/]" for ref in node.refs]
    parts += [f"evidence [bold]{evidence}[/]" for evidence in node.evidence]
    return " · ".join(parts)


def step_view(trace: StepTrace, reader: Reader) -> RenderableType:
    """One step: what the model wrote, what was accepted, opened, refused and run, and its tokens."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(style="dim", justify="right", min_width=8)
    rows.add_column(overflow="fold")
    if trace.output is None:
        kind = {"length": "cut off", "stop": "not a step"}.get(trace.completion.finish_reason, "empty")
        rows.add_row("[red]fault[/]", f"[red]output was {kind}; nothing of it was committed[/]")
        rows.add_row("output", escape(trace.completion.text[:300]))
    else:
        for line in _written(trace):
            rows.add_row(*line)
    for event in trace.events:
        for line in _event_rows(event, reader):
            rows.add_row(*line)
    shape = trace.output.shape if trace.output else "fault"
    title = Text.assemble(
        (f"step {trace.step} ", "bold"),
        (shape, SHAPE_COLOUR.get(shape, "red")),
        (f"  {_tokens(trace)}", "dim"),
    )
    return Group(title, Padding(rows, (0, 0, 1, 2)))


def _tokens(trace: StepTrace) -> str:
    c = trace.completion
    share = f" ({c.cached_tokens / c.prompt_tokens:.0%})" if c.prompt_tokens else ""
    return (
        f"prompt {c.prompt_tokens:,} · cached {c.cached_tokens:,}{share} · generated {c.generated_tokens:,} "
        f"· {c.total_s:.1f} s"
    )


def _written(trace: StepTrace) -> Iterable[tuple[str, str]]:
    output = trace.output
    if output is None:
        return
    if output.state_focus:
        yield "focus", " ".join(output.state_focus)
    for call in output.tool_calls:
        arguments = ", ".join(f"{k}={v!r}" for k, v in call.arguments.items())
        yield "call", f"[green]{escape(call.name)}[/]({escape(arguments)})"
    if output.assistant_message:
        yield "reply", escape(output.assistant_message)


def _event_rows(event: Event, reader: Reader) -> Iterable[tuple[str, str]]:
    if isinstance(event, DeltaCommitted):
        for node in event.added:
            links = links_markup(node)
            yield "ISU +", node_markup(node) + (f"\n[dim]{links}[/]" if links else "")
        for node in event.updated:
            yield "ISU ~", node_markup(node)
        for node_id in event.removed:
            yield "ISU -", node_id
        yield from (refusal_row("ISU", refusal) for refusal in event.refused)
    elif isinstance(event, Disclosed):
        for opened in event.granted:
            found = reader.node(NodeId(opened))
            yield "PSA", f"opened {node_markup(found) if found else f'[bold]{opened}[/]'}"
        for refusal in event.refused:
            yield refusal_row("loop" if refusal.rule in LOOP_RULES else "PSA", refusal)
    elif isinstance(event, ToolFinished):
        text = " ".join(reader.blob(event.digest).decode(errors="replace").split())
        more = f" … ({event.size_bytes:,} bytes)" if len(text) > 160 else ""
        colour = "red" if event.failure else "default"
        yield event.evidence, f"[{colour}]{escape(text[:160])}[/]{more}"


def refusal_row(who: str, refusal: Refusal) -> tuple[str, str]:
    """A refusal: who refused what, by which rule, and what the model is told."""
    return f"[red]{who} ✗[/]", f"[red]{escape(refusal.subject)}[/] {refusal.rule}: {escape(refusal.advice)}"


def request_header(number: int | str, text: str, date: str | None = None) -> RenderableType:
    """The head of a request."""
    title = f"request {number}" + (f" · {date}" if date else "")
    return Panel(escape(text), title=title, title_align="left", border_style="blue")


def result_line(result: RequestResult) -> str:
    """One line on how a request ended."""
    faults = "".join(f", {count} {kind}" for kind, count in result.faults.items())
    ended = "" if result.outcome == "replied" else f"[red]{result.outcome}[/] · "
    return (
        f"[dim]{ended}{result.request} · {result.steps} steps · prompt {result.prompt_tokens:,} · "
        f"cached {result.cached_tokens:,} · generated {result.generated_tokens:,}{faults}[/]"
    )


def chain_tree(branch: Branch) -> Tree:
    """A decision with what it rests on, hop by hop, as a tree."""
    tree = Tree(_branch_label(branch), guide_style="dim")
    _grow(tree, branch)
    return tree


def _grow(tree: Tree, branch: Branch) -> None:
    for evidence, record in branch.evidence:
        what = f"raw result of {escape(record.tool)}, {record.size_bytes:,} bytes" if record else "missing"
        tree.add(f"[dim]evidence[/] [bold]{evidence}[/] {what}")
    for below in branch.branches:
        _grow(tree.add(_branch_label(below)), below)


def _branch_label(branch: Branch) -> str:
    relation = f"[dim]{branch.relation}[/] " if branch.relation else ""
    if branch.node is None:
        return f"{relation}{branch.target} [red]missing[/]"
    again = " [dim](above)[/]" if branch.seen else f" [dim]{branch.node.request}[/]"
    return relation + node_markup(branch.node) + again


def event_line(event: Event) -> str:
    """One event of the log in a few words."""
    if isinstance(event, ToolStarted):
        return f"{event.evidence} {event.name}({', '.join(f'{k}={v!r}' for k, v in event.arguments.items())})"
    if isinstance(event, ToolFinished):
        failed = f" failed: {event.failure.kind}" if event.failure else ""
        return f"{event.evidence} {event.size_bytes:,} bytes in {event.duration_s:.2f} s{failed}"
    if isinstance(event, DeltaCommitted):
        done = (
            [f"+{n.id}" for n in event.added]
            + [f"~{n.id}" for n in event.updated]
            + [f"-{i}" for i in event.removed]
        )
        return " ".join([*done, *(f"✗{r.subject} ({r.rule})" for r in event.refused)])
    if isinstance(event, Disclosed):
        return " ".join([*event.granted, *(f"✗{r.subject} ({r.rule})" for r in event.refused)])
    if event.kind == "ModelReplied":
        fault = f" {event.fault}" if event.fault else ""
        return f"prompt {event.prompt_tokens:,} cached {event.cached_tokens:,} generated {event.generated_tokens:,}{fault}"
    if event.kind == "RequestStarted":
        return " ".join(event.text.split())[:100]
    if event.kind == "RequestFinished":
        return f"{event.outcome}: {' '.join(event.message.split())[:100]}"
    return ""
