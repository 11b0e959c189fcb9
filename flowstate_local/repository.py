"""The repository M of one space, as the pure verbs read it: records, and the read side as a Protocol."""

from collections.abc import Sequence
from typing import Protocol

from pydantic import Field

from flowstate_local.nodes import EvidenceId, Frozen, IndexLine, Node, NodeId, RequestId


class EvidenceRecord(Frozen):
    """Where a raw tool result came from and where its bytes are."""

    id: EvidenceId
    digest: str
    size_bytes: int
    size_chars: int = 0
    tool: str
    request: RequestId
    step: int


class RequestRecord(Frozen):
    """A request that is persisted: what was asked, how it ended, what it left."""

    id: RequestId
    text: str
    date: str | None = None
    outcome: str
    message: str
    nodes: tuple[NodeId, ...] = ()
    evidence: tuple[EvidenceId, ...] = ()
    first_seq: int
    last_seq: int
    steps: int
    at: float = Field(description="Seconds since the epoch at which it finished.")


class Reader(Protocol):
    """The read side of one space, as the pure verbs need it."""

    def node(self, node_id: NodeId) -> Node | None:
        """A persisted node, or None."""

    def evidence(self, evidence_id: EvidenceId) -> EvidenceRecord | None:
        """The record of a persisted raw result, or None."""

    def blob(self, key: str) -> bytes:
        """Raw bytes by digest, checked against it. Raises CorruptValue."""

    def request(self, request_id: RequestId) -> RequestRecord | None:
        """A persisted request, or None."""

    def lines(self, request_id: RequestId) -> Sequence[IndexLine]:
        """Index lines of one request, in the order its nodes were kept."""
