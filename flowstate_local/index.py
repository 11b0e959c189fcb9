"""The index G: one line per persisted node, in the order of history, folded where it grew old.

Between two folds the text only grows at its end, so the prefix cache keeps it. When it passes its token budget,
the oldest requests fold into one line each, and ten of those into one line of a span, and so on: the index stays
bounded while the repository grows without end. Opening a folded line (PSA) shows what is inside.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowstate_local.nodes import SPAN_ID, IndexLine, RequestId
from flowstate_local.repository import Reader, RequestRecord

FAN_OUT = 10
"""Lines that one folded line stands for."""
GIST_CHARS = 60
LONG_REQUEST_CHARS = 500


@dataclass
class Index:
    """G_k as the prompt shows it. Fixed while a request runs."""

    floor: int
    """Requests up to this number are folded."""
    last_request: int
    lines: list[str] = field(default_factory=list)
    """Text lines, oldest first, without line ends."""
    ids: dict[str, None] = field(default_factory=dict)
    """Ids that a line stands for, in order: nodes, requests, spans."""

    @property
    def text(self) -> str:
        """All lines, each ended; "(empty)" where there is no history."""
        return "".join(line + "\n" for line in self.lines) or "(empty)\n"


def load(reader: Reader, *, floor: int, last_request: int) -> Index:
    """Read the index of a space: folded lines for requests up to `floor`, whole ones after it."""
    index = Index(floor=floor, last_request=last_request)
    for line_id in cover(floor):
        index.ids[line_id] = None
        index.lines.append(folded_line(line_id, reader))
    for number in range(floor + 1, last_request + 1):
        record = reader.request(RequestId(f"r{number}"))
        if record is None:
            continue
        append(index, record, reader.lines(record.id))
    return index


def append(index: Index, record: RequestRecord, lines: Sequence[IndexLine]) -> None:
    """Add one finished request at the end. One that left no node leaves no line, unless much was said in it.

    The id of a request is offered only then: opening a short one would just show the lines below again.
    """
    lines = [line for line in lines if not line.erased]
    if not lines and not is_long(record):
        return
    index.lines.append(request_line(record))
    if is_long(record):
        index.ids[record.id] = None
    for line in lines:
        index.ids[line.id] = None
        index.lines.append(node_line(line))


def is_long(record: RequestRecord) -> bool:
    """Was more said in the request than its line and the summaries of its nodes can hold?"""
    return len(record.text) > LONG_REQUEST_CHARS


def cover(floor: int) -> list[str]:
    """Ids of the fewest aligned spans and requests that stand for requests 1..floor, oldest first."""
    ids: list[str] = []
    start = 1
    while start <= floor:
        size = 1
        while (start - 1) % (size * FAN_OUT) == 0 and start + size * FAN_OUT - 1 <= floor:
            size *= FAN_OUT
        ids.append(f"r{start}" if size == 1 else f"s{start}_{start + size - 1}")
        start += size
    return ids


def is_span(first: int, last: int) -> bool:
    """Is first..last one of the aligned spans that folding can make?"""
    size = last - first + 1
    if size < FAN_OUT or (first - 1) % size:
        return False
    while size % FAN_OUT == 0:
        size //= FAN_OUT
    return size == 1


def load_within(
    reader: Reader, *, floor: int, last_request: int, budget: int, count: Callable[[str], int]
) -> Index:
    """Load the index and, where it passed its budget, fold its oldest requests until it fits again.

    Folds down to half of the budget at once: each fold costs one miss of the prefix cache, so they must be rare.
    The newest request always stays whole: it is the likeliest to be needed next.

    Args:
        reader: the repository.
        floor: requests folded already.
        last_request: number of the newest request.
        budget: tokens of the engine's tokenizer.
        count: number of tokens of one line, its end included.
    """
    index = load(reader, floor=floor, last_request=last_request)
    if _size(index, count) <= budget:
        return index
    while _size(index, count) > budget // 2 and index.floor < last_request - 1:
        index = load(reader, floor=index.floor + 1, last_request=last_request)
    return index


def _size(index: Index, count: Callable[[str], int]) -> int:
    return sum(count(line + "\n") for line in index.lines)


def node_line(line: IndexLine) -> str:
    """`n7 judgement (supersedes n3): Booked hotel A {price=200}`."""
    return headed_line(line, f"supersedes {', '.join(line.supersedes)}" if line.supersedes else "")


def headed_line(line: IndexLine, links: str) -> str:
    """A node's line, its links before the colon: what stands at the end a model takes for words of the summary."""
    slots = "".join(f" {{{slot.name}={slot.value}}}" for slot in line.slots)
    return f"{line.id} {line.type}{f' ({links})' if links else ''}: {line.summary}{slots}"


def request_line(record: RequestRecord) -> str:
    """`r3 2026-09-05: 2 nodes: Book a table for ...`."""
    date = f" {record.date}" if record.date else ""
    count = len(record.nodes)
    return f"{record.id}{date}: {count} node{'s' if count != 1 else ''}: {gist(record.text)}"


def folded_line(line_id: str, reader: Reader) -> str:
    """The line of a folded request or span. A span reads two of its requests, whatever its size.

    Kept short: a history of a million requests is covered by up to 54 such lines.
    """
    span = SPAN_ID.match(line_id)
    if span is None:
        record = reader.request(RequestId(line_id))
        return request_line(record) if record else f"{line_id}: erased"
    first, last = int(span[1]), int(span[2])
    sample = [reader.request(RequestId(f"r{n}")) for n in (first, last)]
    known = [record for record in sample if record is not None]
    dates = [record.date for record in known if record.date]
    when = f" {dates[0]} to {dates[-1]}" if dates else ""
    return f"{line_id}{when}: {last - first + 1} requests: {' ... '.join(gist(r.text, 24) for r in known)}"


def gist(text: str, limit: int = GIST_CHARS) -> str:
    """One line of at most `limit` characters, cut at a word where that's possible."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    cut = line[: limit - 3]
    return (cut[: cut.rfind(" ")] if " " in cut[limit // 2 :] else cut) + "..."
