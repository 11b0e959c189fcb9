"""/v1/spaces, seen from further angles: a request's own events, a moment, what tokens went where, raw results as text,
and tasks. What the inspector draws; reading changes nothing.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from flowstate_local.errors import CorruptValue, UnknownTask
from flowstate_local.events import EVENT, Event, ModelReplied, ToolFinished
from flowstate_local.graph import edges
from flowstate_local.history import as_of
from flowstate_local.nodes import REQUEST_ID, EvidenceId, Node, RequestId
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.chat import Authorization
from flowstate_local.server.memory import After, Edge, Limit, Page, number_of, opened
from flowstate_local.server.service import Service
from flowstate_local.server.spaces import SpaceRef
from flowstate_local.stores.base import TaskQuery
from flowstate_local.task_events import TASK_EVENT, TaskRecord
from flowstate_local.task_state import StepState, TaskState
from flowstate_local.tasks.manager import TaskManager

router = APIRouter(prefix="/v1/spaces", tags=["memory"])

PAGE_CHARS = 20_000
"""Characters of a page of a raw result; of bytes that aren't text, a hex dump of so many shows a quarter."""
HEX_WIDTH = 16
"""Bytes of a line of a hex dump."""


class RequestEvents(BaseModel):
    """One request, whole."""

    request: str
    record: RequestRecord | None
    """None while it is under way."""
    events: list[dict[str, Any]]


class Moment(BaseModel):
    """Where a space stood just after an event."""

    seq: int
    last: int
    """Sequence number of the newest event."""
    kind: str
    """Of the event; "" at 0, before everything."""
    request: str
    step: int
    at: float
    requests: int
    """Requests persisted by then."""
    nodes: int
    """Nodes persisted by then."""
    making: list[Node]
    """Nodes that the request under way had written and not yet persisted."""
    making_edges: list[Edge]
    opened: list[str]
    """What it had opened."""


class RequestCost(BaseModel):
    """Tokens and seconds of the model calls of one request."""

    request: str
    text: str
    outcome: str
    at: float
    calls: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt tokens, those that the prefix cache served."""
    generated_tokens: int
    segments: dict[str, int]
    """Prompt tokens by segment, in the order of the prompt; requests of older versions have none."""
    model_s: float


class CostPage(Page):
    """Costs, the oldest request first."""

    data: list[RequestCost]


class EvidenceText(BaseModel):
    """A page of a raw result, to be read by people."""

    record: EvidenceRecord
    kept: bool
    """Whether a node cites it; later requests reach no other."""
    form: Literal["text", "hex"]
    """Bytes that aren't UTF-8 are shown as a hex dump."""
    text: str
    page: int
    pages: int


class TaskList(BaseModel):
    """Tasks by time of creation."""

    data: list[TaskRecord]


class TaskStep(BaseModel):
    """A step of a task's workflow, and where it stands."""

    name: str
    title: str
    kind: str
    """tool, agent or task."""
    needs: list[str]
    state: StepState


class TaskView(BaseModel):
    """One task: its steps, and what its log still holds."""

    record: TaskRecord
    goal: str
    reason: str
    """Why it has its status."""
    steps: list[TaskStep]
    events: list[dict[str, Any]]
    floor: int
    """Events up to this number were compacted away."""


@router.get("/{space}/requests/{request_id}/events", summary="What happened in one request")
async def request_events(
    space: str, request_id: str, request: Request, authorization: Authorization = None
) -> RequestEvents:
    """Its events in order, and how it ended."""
    service, ref = opened(request, space, authorization)
    record, found = await run_in_threadpool(_events_of, service, ref, request_id)
    return RequestEvents(
        request=request_id, record=record, events=[EVENT.dump_python(e, mode="json") for e in found]
    )


@router.get("/{space}/moment", summary="Where the space stood")
async def moment(
    space: str,
    request: Request,
    authorization: Authorization = None,
    seq: Annotated[int | None, Query(ge=0, description="An event; by default the newest.")] = None,
) -> Moment:
    """Which step an event belongs to, and what was in the making just after it."""
    service, ref = opened(request, space, authorization)
    return await run_in_threadpool(_moment, service, ref, seq)


@router.get("/{space}/costs", summary="Tokens of each request")
async def costs(
    space: str, request: Request, authorization: Authorization = None, after: After = None, limit: Limit = 100
) -> CostPage:
    """Prompt by segment, what the prefix cache served, what was written."""
    service, ref = opened(request, space, authorization)

    def read() -> CostPage:
        page = list(islice(service.store.requests(ref.stored, first=number_of(after) + 1), limit + 1))
        data = [_cost(record, _log(service, ref, record)) for record in page[:limit]]
        return CostPage(data=data, next=page[limit - 1].id[1:] if len(page) > limit else None)

    return await run_in_threadpool(read)


@router.get("/{space}/evidence/{evidence}/text", summary="A raw result, page by page")
async def evidence_text(
    space: str,
    evidence: str,
    request: Request,
    authorization: Authorization = None,
    within: Annotated[
        str | None,
        Query(max_length=64, description="The request whose call brought it, if no node cites it."),
    ] = None,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> EvidenceText:
    """As text if it is UTF-8, else as a hex dump; its digest was checked."""
    service, ref = opened(request, space, authorization)
    return await run_in_threadpool(_evidence_text, service, ref, evidence, within, page)


@router.get("/{space}/tasks", summary="Durable tasks")
async def tasks(space: str, request: Request, authorization: Authorization = None) -> TaskList:
    """Those of the space, the oldest first."""
    service, ref = opened(request, space, authorization)
    found = await run_in_threadpool(lambda: list(service.store.tasks(TaskQuery(space=ref.stored))))
    return TaskList(data=[_told(record, ref) for record in found])


@router.get("/{space}/tasks/{task}", summary="One task, its steps and its log")
async def task(space: str, task: str, request: Request, authorization: Authorization = None) -> TaskView:
    """Where each step stands, and every event that was not compacted away."""
    service, ref = opened(request, space, authorization)
    return await run_in_threadpool(_task, service, ref, task)


# --- requests -------------------------------------------------------------------------------------------------


def _events_of(service: Service, ref: SpaceRef, request_id: str) -> tuple[RequestRecord | None, list[Event]]:
    head = service.store.head(ref.stored)
    known = RequestId(request_id)
    record = service.store.reader(ref.stored).request(known) if REQUEST_ID.match(request_id) else None
    if record is not None:
        return record, list(_log(service, ref, record))
    if head.open_request == known:
        return None, list(service.store.events(ref.stored, after=head.open_seq - 1))
    raise ApiError(404, f"there is no request {request_id!r}", code="request_not_found")


def _log(service: Service, ref: SpaceRef, record: RequestRecord) -> Iterator[Event]:
    return service.store.events(ref.stored, after=record.first_seq - 1, upto=record.last_seq)


def _cost(record: RequestRecord, log: Iterable[Event]) -> RequestCost:
    replies = [event for event in log if isinstance(event, ModelReplied)]
    segments: dict[str, int] = {}
    for reply in replies:
        for name, tokens in reply.segments.items():
            segments[name] = segments.get(name, 0) + tokens
    return RequestCost(
        request=record.id,
        text=record.text,
        outcome=record.outcome,
        at=record.at,
        calls=len(replies),
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        cached_tokens=sum(reply.cached_tokens for reply in replies),
        generated_tokens=sum(reply.generated_tokens for reply in replies),
        segments=segments,
        model_s=sum(reply.total_s for reply in replies),
    )


def _moment(service: Service, ref: SpaceRef, seq: int | None) -> Moment:
    last = service.store.head(ref.stored).seq
    seq = last if seq is None else seq
    event = next(iter(service.store.events(ref.stored, after=seq - 1, upto=seq)), None) if seq else None
    then = as_of(service.store.events(ref.stored, upto=seq), seq)
    making = list(then.active.own.values()) if then.active else []
    return Moment(
        seq=seq,
        last=last,
        kind=event.kind if event else "",
        request=event.request if event else "",
        step=event.step if event else 0,
        at=event.at if event else 0.0,
        requests=len(then.finished),
        nodes=len(then.nodes),
        making=making,
        making_edges=[Edge(source=s, relation=r, target=t) for s, r, t in edges(iter(making))],
        opened=list(then.active.opened) if then.active else [],
    )


# --- raw results ----------------------------------------------------------------------------------------------


def _evidence_text(
    service: Service, ref: SpaceRef, evidence: str, within: str | None, page: int
) -> EvidenceText:
    reader = service.store.reader(ref.stored)
    kept = reader.evidence(EvidenceId(evidence))
    record = kept or (_uncited(service, ref, evidence, within) if within else None)
    gone = ApiError(404, f"there is no raw result {evidence!r}", code="evidence_not_found")
    if record is None:
        raise gone
    try:
        raw = reader.blob(record.digest)
    except CorruptValue:
        raise gone from None
    form, text, pages = _readable(raw, page)
    if page > pages:
        raise ApiError(400, f"{evidence} has {pages} pages", code="invalid_value", param="page")
    return EvidenceText(record=record, kept=kept is not None, form=form, text=text, page=page, pages=pages)


def _uncited(service: Service, ref: SpaceRef, evidence: str, within: str) -> EvidenceRecord | None:
    """A result that no node cites stands in the log of its request only."""
    _, log = _events_of(service, ref, within)
    for event in log:
        if isinstance(event, ToolFinished) and event.evidence == evidence:
            return EvidenceRecord(
                id=event.evidence,
                digest=event.digest,
                size_bytes=event.size_bytes,
                size_chars=event.size_chars,
                tool=event.name,
                request=event.request,
                step=event.step,
            )
    return None


def _readable(raw: bytes, page: int) -> tuple[Literal["text", "hex"], str, int]:
    """One page of `raw` and the number of pages."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        size = PAGE_CHARS // 4 // HEX_WIDTH * HEX_WIDTH
        start = (page - 1) * size
        lines = (
            _hex_line(raw[at : at + HEX_WIDTH], at)
            for at in range(start, min(start + size, len(raw)), HEX_WIDTH)
        )
        return "hex", "\n".join(lines), max(1, -(-len(raw) // size))
    return "text", text[(page - 1) * PAGE_CHARS : page * PAGE_CHARS], max(1, -(-len(text) // PAGE_CHARS))


def _hex_line(row: bytes, at: int) -> str:
    shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
    return f"{at:08x}  {row.hex(' '):<{HEX_WIDTH * 3 - 1}}  {shown}"


# --- tasks ----------------------------------------------------------------------------------------------------


def _told(record: TaskRecord, ref: SpaceRef) -> TaskRecord:
    """With the space's name as its owner knows it."""
    return record.model_copy(update={"space": ref.name})


def _task(service: Service, ref: SpaceRef, task: str) -> TaskView:
    manager = TaskManager[Any](service.store, ref.stored)
    try:
        state = manager.get(task)
    except UnknownTask:
        raise ApiError(404, f"there is no task {task!r}", code="task_not_found") from None
    record = service.store.task(ref.stored, state.id)
    assert record is not None, "a task that has a log has a record"
    floor = service.store.task_head(ref.stored, state.id).floor
    log = service.store.task_events(ref.stored, state.id, after=floor)
    return TaskView(
        record=_told(record, ref),
        goal=state.workflow.goal,
        reason=state.reason,
        steps=_steps(state),
        events=[TASK_EVENT.dump_python(event, mode="json") for event in log],
        floor=floor,
    )


def _steps(state: TaskState) -> list[TaskStep]:
    return [
        TaskStep(
            name=spec.name,
            title=spec.title,
            kind=spec.action.kind,
            needs=list(spec.needs),
            state=state.steps[spec.name],
        )
        for spec in state.workflow.steps
    ]
