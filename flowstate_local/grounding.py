"""Grounding: a fact may only hold numbers that stand in what the model has read in this request.

A small model writes down what a tool will say before it has said it ("the taxi costs 100"), and believes its own node
ever after. Words can't be checked without another model; numbers can, and they do the harm.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from difflib import SequenceMatcher

from flowstate_local.nodes import NODE_ID, REQUEST_ID, EvidenceId, Node, NodeId, RequestId, is_raw
from flowstate_local.repository import Reader
from flowstate_local.state import ActiveState, first_page

FACTS = ("knowledge", "attribute")
"""Node types that say how things are. A plan or a wish may hold a number that stands nowhere yet."""

RESTATED_WORDS = 12
"""A run of this many words of the request is no coincidence."""

_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_TERM = r"\d+(?:\.\d+)?(?:\s+[a-z]+)?"
_SUM = re.compile(rf"(?P<terms>{_TERM}(?:\s*\+\s*{_TERM})+)\s*=\s*(?P<total>\d+(?:\.\d+)?)", re.IGNORECASE)
"""`335 + 70 = 405`, `210 dollars + 30 dollars = 240`."""
_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")


def numbers_in(text: str) -> set[str]:
    """The numbers of a text, each in one spelling: `1,200.50` is `1200.5`, `07` is `7`; signs are left out."""
    return {_plain(found) for found in _NUMBER.findall(text)}


def ungrounded(node: Node, state: ActiveState, reader: Reader) -> list[str]:
    """Numbers of a fact that the model can't have read; [] for other types of node.

    Read are the request, tool results and evidence of the active state, opened nodes, and nodes that it refers to.
    """
    if node.type not in FACTS:
        return []
    text = _text(node)
    said = numbers_in(text) - _results(text)
    for read in _read(node, state, reader):
        if not said:
            break
        said -= numbers_in(read)
    return sorted(said)


def restates(node: Node, request: str) -> bool:
    """Is this fact for the most part a long run of the request's own words? Then it is nothing that was found."""
    if node.type not in FACTS:
        return False
    said, asked = _WORD.findall(node.summary.casefold()), _WORD.findall(request.casefold())
    run = SequenceMatcher(None, said, asked, autojunk=False).find_longest_match().size
    return run >= RESTATED_WORDS and 2 * run >= len(said)


def _read(node: Node, state: ActiveState, reader: Reader) -> Iterator[str]:
    yield f"{state.text} {state.date or ''}"
    for other in state.own.values():
        yield _text(other)
    for ref in node.refs:
        if (target := reader.node(ref.target)) is not None:
            yield _text(target)
    for call in state.calls.values():
        yield str(call.arguments)
    for result in state.results.values():
        yield reader.blob(result.digest).decode(errors="replace")
    for opened in state.opened:
        yield from _opened(opened, reader)
    for evidence in node.evidence:
        if evidence not in state.results:
            yield from _opened(evidence, reader)


def _opened(opened: str, reader: Reader) -> Iterator[str]:
    if REQUEST_ID.match(opened):
        asked = reader.request(RequestId(opened))
        if asked is not None:
            yield f"{asked.text} {asked.message}"
    if NODE_ID.match(opened):
        node = reader.node(NodeId(opened))
        if node is not None:
            yield _text(node)
    elif is_raw(opened):
        record = reader.evidence(EvidenceId(first_page(opened)))
        if record is not None:
            yield reader.blob(record.digest).decode(errors="replace")


def _text(node: Node) -> str:
    return " ".join([node.summary, node.content, *(slot.value for slot in node.slots)])


def _results(text: str) -> set[str]:
    """Right-hand sides of the sums in a text that are right. Their terms must have been read like any number."""
    return {
        _plain(found["total"])
        for found in _SUM.finditer(text)
        if sum(map(Decimal, _NUMBER.findall(found["terms"]))) == Decimal(found["total"])
    }


def _plain(number: str) -> str:
    number = _THOUSANDS.sub("", number).replace(",", ".")
    whole, dot, part = number.partition(".")
    if "." in part:
        return number  # a version or a date, not a quantity
    part = part.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{part}" if part else "")
