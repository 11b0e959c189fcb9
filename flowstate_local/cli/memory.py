"""`flowstate memory`: look into a store. Nothing here changes it (`memory_changes` does)."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flowstate_local.cli import show
from flowstate_local.cli.report import reported, write_json
from flowstate_local.cli.roots import Json, Space, StorePath, data_home, open_store, opened_space
from flowstate_local.errors import UsageError
from flowstate_local.events import EVENT
from flowstate_local.graph import edges, trace
from flowstate_local.history import Moment, as_of
from flowstate_local.nodes import EvidenceId, Node, NodeId
from flowstate_local.space_export import exported
from flowstate_local.stores.base import Fault, Store, check_space_name
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.verification import verify as verify_tasks

app = typer.Typer(
    name="memory",
    help="Look into a store: nodes, raw results, graph, log. Only import and erase change anything.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

AsOf = Annotated[
    int | None, typer.Option("--as-of", min=0, help="Show the space as it was after this event.")
]
NodeArgument = Annotated[str, typer.Argument(help="A node id, such as n7.")]


@app.command("spaces", epilog="Example: `flowstate memory spaces --json`")
def spaces(store: StorePath = None, as_json: Json = False) -> None:
    """List the spaces of the store."""
    with reported(as_json=as_json):
        folder = store or data_home()
        if not folder.is_dir():
            raise UsageError(
                f"no store at {folder}", hint="`flowstate run` makes one; --store names another."
            )
        opened = open_store(folder, create=False, readonly=True)
        heads = {name: opened.head(name) for name in opened.spaces()}
        opened.close()
        if as_json:
            write_json([{"space": name, **asdict(head)} for name, head in heads.items()])
            return
        table = Table("space", "requests", "nodes", "raw results", "events", box=None)
        for name, head in heads.items():
            open_request = f" [yellow]({head.open_request} unfinished)[/]" if head.open_request else ""
            numbers = (head.version, head.nodes, head.evidence, head.seq)
            table.add_row(escape(name) + open_request, *(f"{number:,}" for number in numbers))
        Console().print(table)


@app.command("ls", epilog="Example: `flowstate memory ls --space travel --as-of 40`")
def ls(
    space: Space = "default", as_of_seq: AsOf = None, store: StorePath = None, as_json: Json = False
) -> None:
    """List the nodes, request by request; with --as-of, as they were at that event."""
    with opened_space(store, space, as_json=as_json) as opened:
        nodes = (
            list(_at(opened, space, as_of_seq).nodes.values())
            if as_of_seq is not None
            else opened.nodes(space)
        )
        if as_json:
            write_json([node.model_dump(mode="json") for node in nodes])
            return
        console, request = Console(), ""
        for node in nodes:
            if node.request != request:
                request = node.request
                record = opened.reader(space).request(node.request)
                text = " ".join(record.text.split())[:100] if record else ""
                date = f" {record.date}" if record and record.date else ""
                console.print(f"[bold]{request}[/][dim]{date} {escape(text)}[/]", highlight=False)
            console.print(f"  {show.node_markup(node)}", highlight=False)
            if show.links_markup(node):
                console.print(f"      [dim]{show.links_markup(node)}[/]", highlight=False)


@app.command("show", epilog="Example: `flowstate memory show n2 --space travel`")
def show_node(
    node_id: NodeArgument, space: Space = "default", store: StorePath = None, as_json: Json = False
) -> None:
    """Show a node whole."""
    with opened_space(store, space, as_json=as_json) as opened:
        node = _node(opened, space, node_id)
        if as_json:
            write_json(node.model_dump(mode="json"))
            return
        console = Console()
        console.print(show.node_markup(node), highlight=False)
        if node.content:
            console.print(escape(node.content), highlight=False)
        for slot in node.slots:
            console.print(f"  {escape(slot.name)} = {escape(slot.value)}", highlight=False)
        if show.links_markup(node):
            console.print(f"  {show.links_markup(node)}", highlight=False)
        when = datetime.fromtimestamp(node.created_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        console.print(f"[dim]{node.request} step {node.step} · {when}[/]", highlight=False)


@app.command("evidence", epilog="Example: `flowstate memory evidence t1 --space travel > terms.txt`")
def evidence(
    evidence_id: Annotated[str, typer.Argument(help="A raw result, such as t1.")],
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Write a raw tool result, byte for byte."""
    with opened_space(store, space, as_json=as_json) as opened:
        reader = opened.reader(space)
        record = reader.evidence(EvidenceId(evidence_id))
        if record is None:
            raise UsageError(f"no raw result {evidence_id!r} in space {space!r}")
        raw = reader.blob(record.digest)
        if as_json:
            write_json({**record.model_dump(mode="json"), "text": raw.decode(errors="replace")})
        else:
            sys.stdout.buffer.write(raw)
            sys.stdout.flush()


@app.command(
    "graph", epilog="Examples: `flowstate memory graph n7` · `flowstate memory graph --dot | dot -Tsvg`"
)
def graph(
    node_id: Annotated[str | None, typer.Argument(help="Where to begin; without it, all edges.")] = None,
    space: Space = "default",
    dot: Annotated[bool, typer.Option("--dot", help="Write Graphviz.")] = False,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Draw what a decision rests on, hop by hop, or the whole graph."""
    with opened_space(store, space, as_json=as_json) as opened:
        if node_id is not None and not (dot or as_json):
            _node(opened, space, node_id)
            branch = trace(NodeId(node_id), opened.reader(space))
            Console().print(show.chain_tree(branch), highlight=False)
            return
        nodes = {node.id: node for node in opened.nodes(space)}
        found = list(edges(iter(nodes.values())))
        if node_id is not None:
            found = _reached(_node(opened, space, node_id).id, found)
        if as_json:
            write_json([{"source": s, "relation": r, "target": t} for s, r, t in found])
        elif dot:
            typer.echo(_dot(nodes, found))
        else:
            for source, relation, target in found:
                Console().print(f"[bold]{source}[/] [dim]{relation}[/] [bold]{target}[/]", highlight=False)


@app.command("timeline", epilog="Example: `flowstate memory timeline --space travel --request r6`")
def timeline(
    space: Space = "default",
    request: Annotated[str | None, typer.Option("--request", "-r", help="Only this request.")] = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Show the event log."""
    with opened_space(store, space, as_json=as_json) as opened:
        found = (event for event in opened.events(space) if request in (None, event.request))
        if as_json:
            write_json([EVENT.dump_python(event, mode="json") for event in found])
            return
        table = Table("seq", "time (UTC)", "request", "step", "event", "", box=None)
        for event in found:
            when = datetime.fromtimestamp(event.at, UTC).strftime("%H:%M:%S")
            words = escape(show.event_line(event))
            table.add_row(str(event.seq), when, event.request, str(event.step or ""), event.kind, words)
        Console().print(table)


@app.command(
    "verify", epilog="Exit codes: 0 whole, 1 faults found. Example: `flowstate memory verify --json`"
)
def verify(
    space: Annotated[
        str | None, typer.Option("--space", "-s", help="Only this space; otherwise all.")
    ] = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Recompute every hash, resolve every ref, and fold the log of every task again."""
    with reported(as_json=as_json):
        folder = store or data_home()
        opened = open_store(folder, create=False, readonly=True)
        checked = [check_space_name(space)] if space else opened.spaces()
        faults = faults_of(opened, checked)
        opened.close()
        if as_json:
            write_json({"spaces": checked, "faults": [asdict(fault) for fault in faults]})
        else:
            show_faults(faults)
            counted = f"{len(checked)} space{'s' * (len(checked) != 1)} checked"
            Console().print(f"{counted}, {len(faults)} fault{'s' * (len(faults) != 1)}")
        if faults:
            raise typer.Exit(1)


@app.command("export", epilog="Example: `flowstate memory export --space travel > travel.jsonl`")
def export(space: Space = "default", store: StorePath = None) -> None:
    """Write the whole space as JSON lines: requests, nodes, raw results, events, tasks. Raw bytes are base64."""
    with opened_space(store, space, as_json=False) as opened:
        for line in exported(opened, space):
            typer.echo(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def faults_of(store: Store, spaces: Iterable[str]) -> list[Fault]:
    """What is wrong in these spaces: hashes, refs, gaps in the log, tasks that fold otherwise."""
    return [
        fault
        for name in spaces
        for fault in (*store.verify(name), *verify_tasks(TaskManager[Any](store, name)))
    ]


def show_faults(faults: Iterable[Fault]) -> None:
    """One line each, for people."""
    for fault in faults:
        Console().print(f"[red]{escape(fault.space)} {escape(fault.subject)}[/] {escape(fault.problem)}")


def _at(store: Store, space: str, seq: int) -> Moment:
    return as_of(store.events(space, upto=seq), seq)


def _node(store: Store, space: str, node_id: str) -> Node:
    node = store.reader(space).node(NodeId(node_id))
    if node is None:
        raise UsageError(
            f"no node {node_id!r} in space {space!r}", hint="`flowstate memory ls` shows the ids."
        )
    return node


def _reached(start: NodeId, found: list[tuple[NodeId, str, str]]) -> list[tuple[NodeId, str, str]]:
    seen, queue = {str(start)}, [str(start)]
    while queue:
        source = queue.pop()
        for s, _, target in found:
            if s == source and target not in seen:
                seen.add(target)
                queue.append(target)
    return [edge for edge in found if edge[0] in seen]


def _dot(nodes: dict[NodeId, Node], found: list[tuple[NodeId, str, str]]) -> str:
    lines = ["digraph memory {", "  rankdir=RL; node [shape=box, style=rounded, fontname=Helvetica];"]
    for node in nodes.values():
        label = f"{node.id} {node.type}\n{node.summary}"
        lines.append(f"  {json.dumps(node.id)} [label={json.dumps(label, ensure_ascii=False)}];")
    for source, relation, target in found:
        style = ", style=dashed" if relation == "evidence" else ""
        lines.append(f"  {json.dumps(source)} -> {json.dumps(target)} [label={json.dumps(relation)}{style}];")
    return "\n".join([*lines, "}"])
