"""Keys and values of the store on disk: which table, which key, which bytes. Knows no LMDB.

Keys are eight bytes of space number, then big-endian numbers or ids; values are the envelopes of `codec`. The head of
a space rides on its last event, behind a line end: a commit that only adds events touches one page for both.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from flowstate_local.errors import CorruptValue
from flowstate_local.events import Event
from flowstate_local.nodes import IndexLine, Node
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.stores import codec, rules
from flowstate_local.stores.base import Head

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


class PackedEvents:
    """Events as they are stored behind event number `after`, all but the head that goes with the last one.

    Raises:
        UsageError: an event holds what JSON can't.
    """

    def __init__(self, events: Sequence[Event], after: int) -> None:
        bodies = codec.dump_events(events, after)
        self._after = after
        self._packed = [codec.pack(body) for body in bodies[:-1]]
        self._last = bodies[-1:]

    def puts(self, prefix: bytes, head: Head) -> list[Put]:
        """What adds them to the log of a space, and makes `head` its head."""
        last = [codec.pack(body + LINE_END + json.dumps(vars(head)).encode()) for body in self._last]
        packed = enumerate([*self._packed, *last], start=self._after + 1)
        return [Put("events", prefix + u64(seq), body) for seq, body in packed]


LINE_END = b"\n"
"""JSON on one line has none."""
LAST = b"\xff" * 8
"""No number is as high."""


def decode_head(key: bytes, value: bytes) -> Head:
    """The head of a space from its last event. Raises CorruptValue."""
    subject = f"event seq {number_of(key)}"
    _, _, head = codec.unseal("events", key, value, subject).partition(LINE_END)
    try:
        return Head(**json.loads(head))
    except (ValueError, TypeError) as error:
        raise CorruptValue(f"{subject}: the last event of a commit, without a head: {error}") from error


def request_puts(prefix: bytes, end: rules.PersistPlan) -> list[Put]:
    """What a persisted request leaves: its record, nodes, index lines and evidence."""
    number = u64(int(end.record.id[1:]))
    puts = [Put("requests", prefix + number, codec.pack(codec.dump(end.record)))]
    for node in end.nodes:
        puts.append(Put("nodes", prefix + node.id.encode(), codec.pack(codec.dump(node))))
    for i, line in enumerate(end.lines):
        puts.append(Put("lines", prefix + number + i.to_bytes(4, "big"), codec.pack(codec.dump(line))))
    for record in end.evidence:
        key = prefix + u64(int(record.id[1:]))
        puts.append(Put("evidence", key, codec.pack(codec.dump(record))))
    return puts


def decode_event(key: bytes, value: bytes) -> Event:
    """Raises CorruptValue, UnknownVersion; so do the next four."""
    subject = f"event seq {number_of(key)}"
    body, _, _ = codec.unseal("events", key, value, subject).partition(LINE_END)
    return codec.load_event(body, subject)


def decode_node(key: bytes, value: bytes) -> Node:
    """A node from its place."""
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
