"""Keys and values of the store on disk: which table, which key, which bytes. Knows no LMDB.

Keys are eight bytes of space number, then big-endian numbers or ids; values are the envelopes of `codec`.

The events of one commit are one value, a batch, with the head of the space before them: its key ends with the number of
the last event and how many they are. So a commit that only adds events writes at one place.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from flowstate_local.errors import CorruptValue
from flowstate_local.events import Event
from flowstate_local.nodes import IndexLine, Node, RequestId
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.stores import codec, rules
from flowstate_local.stores.base import EMPTY, Erasure, Head

TABLES = (
    "meta",
    "spaces",
    "events",
    "nodes",
    "lines",
    "evidence",
    "requests",
    "blobs",
    "tasks",
    "task_events",
    "task_snapshots",
    "task_index",
    "leases",
)

SPACE_TABLES = tuple(name for name in TABLES if name not in ("meta", "spaces", "task_index"))
"""Those whose keys begin with the number of a space."""


@dataclass(frozen=True)
class Put:
    """One value to write, sealed when it is written."""

    table: str
    key: bytes
    packed: tuple[int, bytes] | None
    """Format and body, as `codec.pack` returns them; None deletes the key."""

    @property
    def size_bytes(self) -> int:
        """Of key and body."""
        return len(self.key) + (len(self.packed[1]) if self.packed else 0)


def u64(number: int) -> bytes:
    """Eight bytes that sort as the numbers do."""
    return number.to_bytes(8, "big")


def number_of(key: bytes) -> int:
    """The number behind the space in a key."""
    return int.from_bytes(key[8:16], "big")


def last_number_of(key: bytes) -> int:
    """The number at the end of a key."""
    return int.from_bytes(key[-8:], "big")


def digest_bytes(key: str) -> bytes | None:
    """SHA-256 in hex as bytes; None if it isn't one."""
    with suppress(ValueError):
        raw_key = bytes.fromhex(key)
        return raw_key if raw_key.hex() == key and len(raw_key) == 32 else None
    return None


# batches


def batch_key(after: int, n_events: int) -> bytes:
    """The end of the key of a batch that follows event number `after`. A range from any of its seqs on finds it."""
    return u64(after + n_events) + n_events.to_bytes(4, "big")


def seqs_of(key: bytes) -> range:
    """The numbers of the events in a batch."""
    last = int.from_bytes(key[-12:-4], "big")
    return range(max(1, last - int.from_bytes(key[-4:], "big") + 1), last + 1)


def seqs_text(seqs: range) -> str:
    """How messages name some events."""
    return f"event seq {seqs[-1]}" if len(seqs) == 1 else f"events seq {seqs.start} to {seqs.stop - 1}"


def check_no_gap(seqs: range, expected: int, subject: str) -> None:
    """Raise CorruptValue unless the batch holds the event that is to follow."""
    if seqs.start > expected:
        raise CorruptValue(f"event seq {expected}{subject}: missing from the log; the next is {seqs.start}")


def parse_batch(body: bytes, seqs: range, subject: str) -> list[tuple[int, Any]]:
    """The events of a batch with their numbers, still to be loaded. Raises CorruptValue."""
    events = codec.parse_events(body, subject)
    if len(events) != len(seqs):
        raise CorruptValue(f"{subject}: holds {len(events)} events")
    return list(zip(seqs, events, strict=True))


class Batch:
    """Events as they are stored behind event number `after`, all but the head that goes with them.

    Raises:
        UsageError: an event holds what JSON can't.
    """

    def __init__(self, events: Sequence[Event], after: int) -> None:
        form, body = codec.pack(codec.dump_events(events))
        self._key = batch_key(after, len(events))
        self._events = bytes([form]) + body

    def put(self, prefix: bytes, head: Head) -> Put:
        """What adds them to the log of a space, and makes `head` its head."""
        body = to_json(vars(head)) + LINE_END + self._events
        return Put("events", prefix + self._key, (codec.PLAIN, body))


def open_batch(key: bytes, value: bytes) -> list[tuple[int, Any]]:
    """The events of a batch with their numbers, still to be loaded. Raises CorruptValue, UnknownVersion."""
    seqs = seqs_of(key)
    subject = seqs_text(seqs)
    _, _, packed = codec.unseal("events", key, value, subject).partition(LINE_END)
    if not packed:
        raise CorruptValue(f"{subject}: a batch without events")
    return parse_batch(codec.unpack(packed[0], packed[1:], subject), seqs, subject)


def rewritten_batch(key: bytes, value: bytes, new: Mapping[int, Event]) -> Put:
    """A batch with some of its events replaced, and its head as it was. Raises CorruptValue, UnknownVersion."""
    head, _, _ = codec.unseal("events", key, value, seqs_text(seqs_of(key))).partition(LINE_END)
    events = [new.get(seq, fields) for seq, fields in open_batch(key, value)]
    form, body = codec.pack(to_json(events))
    return Put("events", key, (codec.PLAIN, head + LINE_END + bytes([form]) + body))


def erasure_puts(prefix: bytes, erasure: Erasure) -> list[Put]:
    """What an erasure writes and deletes, all but the events."""
    puts = [
        Put("requests", prefix + u64(int(record.id[1:])), codec.pack(codec.dump(record)))
        for record in erasure.requests
    ]
    puts += [Put("nodes", prefix + node.id.encode(), codec.pack(codec.dump(node))) for node in erasure.nodes]
    for request, lines in erasure.lines.items():
        puts += line_puts(prefix, request, lines)
    puts += [Put("evidence", prefix + u64(int(one[1:])), None) for one in erasure.evidence]
    puts += [Put("blobs", prefix + bytes.fromhex(key), None) for key in erasure.blobs]
    return [*puts, Put("blobs", prefix + bytes.fromhex(EMPTY), codec.pack(b""))]


def line_puts(prefix: bytes, request: RequestId, lines: Sequence[IndexLine]) -> list[Put]:
    """The index lines of a request."""
    start = prefix + u64(int(request[1:]))
    return [
        Put("lines", start + i.to_bytes(4, "big"), codec.pack(codec.dump(line)))
        for i, line in enumerate(lines)
    ]


def load_event(seq: int, fields: Any) -> Event:
    """An event from its batch. Raises CorruptValue, UnknownVersion."""
    return codec.load_event(fields, seq, f"event seq {seq}")


LINE_END = b"\n"
"""JSON on one line has none."""
LAST = b"\xff" * 12
"""No key of a batch is as high."""


def decode_head(key: bytes, value: bytes) -> Head:
    """The head of a space from its last batch. Raises CorruptValue."""
    subject = seqs_text(seqs_of(key))
    head, _, _ = codec.unseal("events", key, value, subject).partition(LINE_END)
    try:
        return Head(**json.loads(head))
    except (ValueError, TypeError) as error:
        raise CorruptValue(f"{subject}: a batch without a head: {error}") from error


def request_puts(prefix: bytes, end: rules.PersistPlan) -> list[Put]:
    """What a persisted request leaves: its record, nodes, index lines and evidence."""
    number = u64(int(end.record.id[1:]))
    puts = [Put("requests", prefix + number, codec.pack(codec.dump(end.record)))]
    for node in end.nodes:
        puts.append(Put("nodes", prefix + node.id.encode(), codec.pack(codec.dump(node))))
    puts += line_puts(prefix, end.record.id, end.lines)
    for record in end.evidence:
        key = prefix + u64(int(record.id[1:]))
        puts.append(Put("evidence", key, codec.pack(codec.dump(record))))
    return puts


def decode_node(key: bytes, value: bytes) -> Node:
    """A node from its place. Raises CorruptValue, UnknownVersion; so do the next three."""
    subject = f"node {key[8:].decode(errors='replace')}"
    return codec.load_node(codec.unseal("nodes", key, value, subject), subject)


def decode_line(key: bytes, value: bytes) -> IndexLine:
    """An index line from its place."""
    subject = f"line {int.from_bytes(key[16:], 'big') + 1} of the index of r{number_of(key)}"
    return codec.load(IndexLine, codec.unseal("lines", key, value, subject), subject)


def decode_evidence(key: bytes, value: bytes) -> EvidenceRecord:
    """An evidence record from its place."""
    subject = f"evidence t{number_of(key)}"
    return codec.load(EvidenceRecord, codec.unseal("evidence", key, value, subject), subject)


def decode_request(key: bytes, value: bytes) -> RequestRecord:
    """The record of a persisted request from its place."""
    subject = f"request r{number_of(key)}"
    return codec.load(RequestRecord, codec.unseal("requests", key, value, subject), subject)
