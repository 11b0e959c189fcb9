"""/v1/spaces: look into a memory. What the command line shows, over HTTP; reading changes nothing."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from flowstate_local.erasure import erase
from flowstate_local.events import EVENT
from flowstate_local.graph import edges, trace
from flowstate_local.history import as_of
from flowstate_local.nodes import EvidenceId, Node, NodeId, NodeType
from flowstate_local.notes import Note, add_note
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.chat import Authorization
from flowstate_local.server.service import Service
from flowstate_local.server.spaces import SpaceRef, find_space, spaces_of, unknown_space
from flowstate_local.server.tenants import Caller, Scope
from flowstate_local.space_export import exported
from flowstate_local.space_import import imported

router = APIRouter(prefix="/v1/spaces", tags=["memory"])
MOST = 1_000
"""Items of a page."""


class SpaceInfo(BaseModel):
    """One space."""

    space: str
    version: int
    """Requests that are persisted."""
    nodes: int
    events: int
    open_request: str | None
    """The unfinished request, if there is one."""


class Page(BaseModel):
    """Part of a list."""

    data: list[Any]
    next: str | None = None
    """`after` of the next page; None at the end."""


class NodePage(Page):
    """Nodes, in the order in which they were kept."""

    data: list[Node]


class RequestPage(Page):
    """Requests, the oldest first."""

    data: list[RequestRecord]


class Edge(BaseModel):
    """One link."""

    source: str
    relation: str
    """As the node says, or "evidence"."""
    target: str


class Graph(BaseModel):
    """Nodes and all links among them and to raw results."""

    nodes: list[Node]
    edges: list[Edge]


class Hop(BaseModel):
    """A node and what it rests on."""

    relation: str
    target: str
    node: Node | None
    evidence: list[EvidenceRecord]
    rests_on: list["Hop"]


class FaultInfo(BaseModel):
    """Something that verification found."""

    subject: str
    problem: str


class ImportInfo(BaseModel):
    """What came of an import."""

    space: str
    requests: int
    nodes: int
    events: int
    tasks: int
    skipped_tasks: list[str]
    """Compacted ones, whose first events are gone."""


class EraseBody(BaseModel):
    """What is to be erased."""

    model_config = ConfigDict(extra="forbid")

    nodes: Annotated[list[str], Field(max_length=1_000)] = []
    requests: Annotated[list[str], Field(max_length=1_000)] = []


class EraseInfo(BaseModel):
    """What was erased."""

    nodes: list[str]
    requests: list[str]
    evidence: list[str]
    """Raw results that no other node rests on."""


After = Annotated[str | None, Query(max_length=64, description="`next` of the page before.")]
Limit = Annotated[int, Query(ge=1, le=MOST)]
AsOf = Annotated[int | None, Query(ge=0, description="The space as it was after this event.")]


@router.get("", summary="Your spaces")
async def spaces(request: Request, authorization: Authorization = None) -> list[SpaceInfo]:
    """Those you own, by name."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "read")
    return [_info(service, ref) for ref in spaces_of(service.store, caller.tenant)]


@router.get("/{space}", summary="One space")
async def space_info(space: str, request: Request, authorization: Authorization = None) -> SpaceInfo:
    """How much is in it."""
    service, ref = opened(request, space, authorization)
    return _info(service, ref)


@router.get("/{space}/nodes", summary="Nodes, all or found")
async def nodes(
    space: str,
    request: Request,
    authorization: Authorization = None,
    q: Annotated[str | None, Query(max_length=200, description="Words that the node must hold.")] = None,
    type: NodeType | None = None,
    as_of_seq: AsOf = None,
    after: After = None,
    limit: Limit = 100,
) -> NodePage:
    """Nodes in the order in which they were kept; with `q` those that hold all of its words."""
    service, ref = opened(request, space, authorization)

    def read() -> NodePage:
        everything: Iterator[Node] = iter(_at(service, ref, as_of_seq))
        words = (q or "").casefold().split()
        found: Iterator[Node] = (
            n for n in everything if (type is None or n.type == type) and _holds(n, words)
        )
        if after is not None:
            found = _behind(found, after)
        page = list(islice(found, limit + 1))
        return NodePage(data=page[:limit], next=page[limit - 1].id if len(page) > limit else None)

    return await run_in_threadpool(read)


@router.post("/{space}/nodes", summary="Add a node without the model", status_code=201)
async def add(space: str, note: Note, request: Request, authorization: Authorization = None) -> Node:
    """It becomes a request of its own, judged like everything that a model writes; `source` is kept as raw result."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "write")
    ref = find_space(service.tenants, caller, space, write=True)
    service.admission.check_bytes(ref.owner)
    async with service.admission.writing(caller, ref):
        writer = f"{caller.tenant.name} over HTTP"
        added = await run_in_threadpool(add_note, service.store, ref.stored, note, writer=writer)
    return added.node


@router.get("/{space}/nodes/{node}", summary="What a node rests on")
async def node(
    space: str,
    node: str,
    request: Request,
    authorization: Authorization = None,
    depth: Annotated[int, Query(ge=0, le=32)] = 8,
) -> Hop:
    """The node, and hop by hop what it refers to, down to raw results."""
    service, ref = opened(request, space, authorization)
    root = await run_in_threadpool(trace, NodeId(node), service.store.reader(ref.stored), depth=depth)
    if root.node is None:
        raise ApiError(404, f"there is no node {node!r}", code="node_not_found")
    return _hop(root)


@router.get("/{space}/evidence/{evidence}", summary="A raw result", response_class=Response)
async def evidence(
    space: str, evidence: str, request: Request, authorization: Authorization = None
) -> Response:
    """Its bytes as the tool brought them, the record in headers. Never interpreted: always octet-stream."""
    service, ref = opened(request, space, authorization)
    reader = service.store.reader(ref.stored)
    record = reader.evidence(EvidenceId(evidence))
    if record is None:
        raise ApiError(404, f"there is no raw result {evidence!r}", code="evidence_not_found")
    raw = await run_in_threadpool(reader.blob, record.digest)
    headers = {
        "X-Digest": record.digest,
        "X-Request": record.request,
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": f'attachment; filename="{record.id}"',
    }
    return Response(raw, media_type="application/octet-stream", headers=headers)


@router.get("/{space}/requests", summary="Requests")
async def requests(
    space: str, request: Request, authorization: Authorization = None, after: After = None, limit: Limit = 100
) -> RequestPage:
    """What was asked, how it ended, what it left."""
    service, ref = opened(request, space, authorization)
    first = number_of(after) + 1
    page = list(islice(service.store.requests(ref.stored, first=first), limit + 1))
    return RequestPage(data=page[:limit], next=page[limit - 1].id[1:] if len(page) > limit else None)


@router.get("/{space}/timeline", summary="The log")
async def timeline(
    space: str, request: Request, authorization: Authorization = None, after: After = None, limit: Limit = 100
) -> Page:
    """Events in order; what happened, and nothing else, made everything that is there."""
    service, ref = opened(request, space, authorization)
    page = list(islice(service.store.events(ref.stored, after=number_of(after)), limit + 1))
    data = [EVENT.dump_python(event, mode="json") for event in page[:limit]]
    return Page(data=data, next=str(page[limit - 1].seq) if len(page) > limit else None)


@router.get("/{space}/graph", summary="The graph")
async def graph(
    space: str, request: Request, authorization: Authorization = None, as_of_seq: AsOf = None
) -> Graph:
    """Nodes and links, as they were after an event if one is named."""
    service, ref = opened(request, space, authorization)
    found = await run_in_threadpool(lambda: list(_at(service, ref, as_of_seq)))
    links = [Edge(source=s, relation=r, target=t) for s, r, t in edges(iter(found))]
    return Graph(nodes=found, edges=links)


@router.get("/{space}/export", summary="Everything, as JSON lines", response_class=StreamingResponse)
async def export(space: str, request: Request, authorization: Authorization = None) -> StreamingResponse:
    """Requests with their raw results (base64), nodes, events, tasks."""
    service, ref = opened(request, space, authorization)

    def lines() -> Iterator[str]:
        for line in exported(service.store, ref.stored):
            told = line | ({"space": ref.name} if line["kind"] == "space" else {})
            yield json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@router.post("/{space}/verify", summary="Check every hash and link")
async def verify(space: str, request: Request, authorization: Authorization = None) -> list[FaultInfo]:
    """Faults; none is the usual answer."""
    service, ref = opened(request, space, authorization)
    faults = await run_in_threadpool(service.store.verify, ref.stored)
    return [FaultInfo(subject=fault.subject, problem=fault.problem) for fault in faults]


@router.post("/{space}/import", summary="Bring an export back, as a new space", status_code=201)
async def import_space(space: str, request: Request, authorization: Authorization = None) -> ImportInfo:
    """The body is what `export` gave. All of it is checked before anything is written."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "write")
    ref = find_space(service.tenants, caller, space, write=True)
    body = await request.body()
    service.admission.check_bytes(ref.owner, len(body))
    async with service.admission.writing(caller, ref):
        done = await run_in_threadpool(imported, service.store, ref.stored, body.splitlines())
    return ImportInfo(
        space=ref.name,
        requests=done.requests,
        nodes=done.nodes,
        events=done.events,
        tasks=done.tasks,
        skipped_tasks=list(done.skipped_tasks),
    )


@router.delete("/{space}", summary="Erase a space", status_code=204)
async def erase_space(space: str, request: Request, authorization: Authorization = None) -> None:
    """Everything of it. Only its owner may, with an admin key."""
    service, caller, ref = _own(request, space, authorization)
    async with service.admission.writing(caller, ref):
        await run_in_threadpool(service.store.erase_space, ref.stored)


@router.post("/{space}/erase", summary="Erase nodes or requests")
async def erase_parts(
    space: str, body: EraseBody, request: Request, authorization: Authorization = None
) -> EraseInfo:
    """Also from the log; tombstones stay. Only the owner may, with an admin key."""
    service, caller, ref = _own(request, space, authorization)
    async with service.admission.writing(caller, ref):
        done = await run_in_threadpool(
            erase, service.store, ref.stored, nodes=body.nodes, requests=body.requests
        )
    return EraseInfo(nodes=list(done.nodes), requests=list(done.requests), evidence=list(done.evidence))


# --- inside ---------------------------------------------------------------------------------------------------


def opened(
    request: Request, space: str, authorization: str | None, scope: Scope = "read"
) -> tuple[Service, SpaceRef]:
    """The space, if the caller may read it and there is something in it."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, scope)
    return service, open_space(service, caller, space, write=scope != "read")


def open_space(service: Service, caller: Caller, name: str, *, write: bool) -> SpaceRef:
    """A space in which there is something. Raises ApiError 404."""
    ref = find_space(service.tenants, caller, name, write=write)
    if service.store.head(ref.stored).seq == 0 and ref.stored not in service.store.spaces():
        raise unknown_space(name)
    return ref


def _own(request: Request, space: str, authorization: str | None) -> tuple[Service, Caller, SpaceRef]:
    """A space that the caller may erase."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "admin")
    return service, caller, own_space(service, caller, space, "erases", write=False)


def own_space(service: Service, caller: Caller, name: str, verb: str, *, write: bool) -> SpaceRef:
    """A space of the caller's own, for what only its owner does. Raises ApiError 403, 404."""
    ref = open_space(service, caller, name, write=write)
    if ref.owner.id != caller.tenant.id:
        raise ApiError(
            403, f"only its owner {verb} a space", type="permission_error", code="insufficient_scope"
        )
    return ref


def _info(service: Service, ref: SpaceRef) -> SpaceInfo:
    head = service.store.head(ref.stored)
    return SpaceInfo(
        space=ref.name,
        version=head.version,
        nodes=head.nodes,
        events=head.seq,
        open_request=head.open_request,
    )


def _at(service: Service, ref: SpaceRef, seq: int | None) -> Iterator[Node]:
    if seq is None:
        return service.store.nodes(ref.stored)
    return iter(as_of(service.store.events(ref.stored, upto=seq), seq).nodes.values())


def _holds(node: Node, words: list[str]) -> bool:
    text = f"{node.summary} {node.content} {' '.join(f'{s.name} {s.value}' for s in node.slots)}".casefold()
    return all(word in text for word in words)


def _behind(found: Iterator[Node], after: str) -> Iterator[Node]:
    """What comes after the node `after`; nothing, if it isn't there."""
    for node in found:
        if node.id == after:
            break
    return found


def number_of(after: str | None) -> int:
    """The number behind which a page begins. Raises ApiError 400."""
    if after is None:
        return 0
    if not after.isdecimal():
        raise ApiError(400, f"after={after!r} is no `next` of a page", code="bad_cursor", param="after")
    return int(after)


def _hop(branch: Any) -> Hop:
    return Hop(
        relation=branch.relation,
        target=branch.target,
        node=branch.node,
        evidence=[record for _, record in branch.evidence if record is not None],
        rests_on=[_hop(one) for one in branch.branches],
    )
