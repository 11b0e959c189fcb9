"""Serialize: the prompt of one step as token ids, append-only up to the observation.

    system  [1] rules and examples   [2] tools, instructions              static
    user    [3] index                [4] request                          fixed within the request
            [5] state log                                                 grows at its end
            [6] raw buffer (optional)                                     the last steps, whole
            [7] observation                                               replaced every step

Each segment is encoded once, alone, and kept as ids; a prompt is their concatenation. So the ids of step t up to the
end of [5] are an exact prefix of the ids of step t+1, and the prefix cache serves them.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from weakref import WeakKeyDictionary, ref

from flowstate_local import psa
from flowstate_local.completion import Tokenizer
from flowstate_local.events import Event, ModelReplied, Refusal, ToolFinished
from flowstate_local.index import Index, folded_line, headed_line, is_long, node_line, request_line
from flowstate_local.nodes import (
    NODE_ID,
    REQUEST_ID,
    EvidenceId,
    IndexLine,
    Node,
    NodeId,
    RequestId,
    is_raw,
)
from flowstate_local.repository import Reader
from flowstate_local.rules import EXAMPLES, RULES
from flowstate_local.state import ActiveState, LogEntry, first_page


@dataclass(frozen=True)
class Observation:
    """O: what the last step brought. `results` are ids of this request's tool results."""

    results: tuple[EvidenceId, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()
    """Words of the runtime, such as a cut-off output or the last step of the budget."""
    step: int = 1
    """Number of the step that the model writes next."""
    advice: str = ""
    """What that step is usually for."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids, with the size of each of its segments."""

    ids: list[int]
    segments: dict[str, int]
    """Tokens by segment: rules, tools, instructions, index, request, state (written and called in this
    request), opened, raw_buffer, observation (template tokens beside their segment)."""
    stable: int
    """Tokens up to the end of the state log: an exact prefix of the next step's prompt."""


@dataclass
class Context:
    """The segments of one request's prompts. `extend` encodes what is new; nothing is ever encoded twice."""

    tokenizer: Tokenizer
    reader: Reader
    page_chars: int
    heads: dict[str, list[int]] = field(default_factory=dict)
    state_ids: list[int] = field(default_factory=list)
    n_opened: int = 0
    """Tokens of the state log that show what was opened."""
    n_entries: int = 0

    @classmethod
    def open(
        cls,
        tokenizer: Tokenizer,
        reader: Reader,
        *,
        tools: str,
        instructions: str = "",
        index: Index,
        text: str,
        date: str | None,
        page_chars: int,
    ) -> "Context":
        """Encode everything that stays fixed for one request."""
        frame, encode = tokenizer.frame, fixed(tokenizer)
        index_ids = encode("INDEX\n")
        # Line by line: a line's ids must not depend on what is appended after it.
        for line in index.lines:
            index_ids = index_ids + encode(line + "\n")
        if not index.lines:
            index_ids = index_ids + encode("(empty)\n")
        heads = {
            "rules": tokenizer.encode_frame(frame.system_open) + encode(RULES + "\n" + EXAMPLES),
            "tools": encode("\nTools\n" + tools),
            "instructions": encode(instructions_text(instructions)),
            "index": tokenizer.encode_frame(frame.user_open) + index_ids,
            "request": tokenizer.encode(request_text(text, date)) + encode("STATE\n"),
        }
        return cls(tokenizer=tokenizer, reader=reader, page_chars=page_chars, heads=heads)

    def extend(self, state: ActiveState) -> None:
        """Encode the entries of the state log that are new."""
        for entry in state.log[self.n_entries :]:
            ids = self.tokenizer.encode(entry_text(entry, state, self.reader, self.page_chars))
            self.state_ids.extend(ids)
            self.n_opened += len(ids) if entry.kind == "opened" else 0
        self.n_entries = len(state.log)


_FIXED: "WeakKeyDictionary[Tokenizer, Callable[[str], list[int]]]" = WeakKeyDictionary()
_MOST_FIXED = 4_096


def fixed(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """`tokenizer.encode` for texts that stand in the prompts of many requests: rules, tools, lines of an index.

    Ids are remembered, those used last; don't change the lists.
    """
    if tokenizer not in _FIXED:
        weak = ref(tokenizer)  # what is remembered must not keep alive what it is remembered for

        @lru_cache(maxsize=_MOST_FIXED)
        def encode(text: str) -> list[int]:
            alive = weak()
            assert alive is not None, "whoever calls this has the tokenizer"
            return alive.encode(text)

        _FIXED[tokenizer] = encode
    return _FIXED[tokenizer]


def serialize(
    context: Context, state: ActiveState, observation: Observation, raw_steps: Iterable[Sequence[Event]] = ()
) -> Prompt:
    """C = Serialize(q, O, G, S): the prompt of the step to come.

    Args:
        context: the segments that stay, and the state log so far.
        state: the active state.
        observation: what the last step brought.
        raw_steps: events of the steps that are to stand in the raw buffer, oldest first.
    """
    context.extend(state)
    tokenizer = context.tokenizer
    buffer = tokenizer.encode(raw_buffer_text(raw_steps, state, context, observation.results))
    text = observation_text(observation, state, context.reader, context.page_chars)
    tail = tokenizer.encode(text) + tokenizer.encode_frame(tokenizer.frame.reply_open)
    ids = [i for head in context.heads.values() for i in head]
    ids.extend(context.state_ids)
    stable = len(ids)
    ids.extend(buffer)
    ids.extend(tail)
    segments = {name: len(head) for name, head in context.heads.items()}
    segments |= {"state": len(context.state_ids) - context.n_opened, "opened": context.n_opened}
    segments |= {"raw_buffer": len(buffer), "observation": len(tail)}
    return Prompt(ids=ids, segments=segments, stable=stable)


def instructions_text(instructions: str) -> str:
    """What an application adds to the static part: its policy, its tone."""
    return f"\nInstructions\n{instructions.strip()}\n" if instructions.strip() else ""


def request_text(text: str, date: str | None) -> str:
    """Segment [4]. A date belongs here and nowhere before: it changes."""
    return f"REQUEST{f' ({date})' if date else ''}\n{text.strip()}\n"


def entry_text(entry: LogEntry, state: ActiveState, reader: Reader, page_chars: int) -> str:
    """One entry of the state log, its lines ended."""
    if isinstance(entry.subject, Node):
        return f"{entry.kind} {node_text(entry.subject)}\n"
    subject = entry.subject
    if entry.kind == "opened":
        return opened_text(subject, state, reader, page_chars)
    if entry.kind == "called":
        return f"{call_line(EvidenceId(subject), state, reader)}\n"
    return f"{entry.kind} {subject}\n"


def opened_text(opened: str, state: ActiveState, reader: Reader, page_chars: int) -> str:
    """What a disclosure shows: a whole node, a page of raw result, or the lines of what was folded."""
    if is_raw(opened):
        text, page, pages = psa.page_text(opened, state, reader, page_chars)
        return f"opened {opened}{_page_note(opened, page, pages)}:\n{text.rstrip()}\n(end of {opened})\n"
    if NODE_ID.match(opened):
        node = reader.node(NodeId(opened))
        return f"opened {node_text(node)}\n" if node else f"opened {opened}: erased\n"
    if REQUEST_ID.match(opened):
        record = reader.request(RequestId(opened))
        head = request_line(record) if record else opened
        lines = [node_line(line) for line in reader.lines(RequestId(opened))]
        asked = f"\nasked: {_beginning(record.text, page_chars)}" if record and is_long(record) else ""
        reply = f"\nreply: {record.message}" if record else ""
        return "\n".join([f"opened {head}{asked}{reply}", *lines]) + "\n"
    return (
        "\n".join([f"opened {opened}:", *(folded_line(i, reader) for i in psa.inside(opened, reader))]) + "\n"
    )


def _beginning(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most:,} more characters)"


def node_text(node: Node) -> str:
    """A node with its content, refs as relation and id, and evidence ids; never a neighbour's text."""
    links = [", ".join(f"{ref.relation} {ref.target}" for ref in node.refs)]
    links.append("evidence " + ", ".join(node.evidence) if node.evidence else "")
    links.append(f"valid until {node.valid_until}" if node.valid_until else "")
    links.append(f"confidence {node.confidence:g}" if node.confidence is not None else "")
    text = headed_line(IndexLine.of(node), "; ".join(link for link in links if link))
    return f"{text}\n{node.content}" if node.content else text


def call_line(evidence: EvidenceId, state: ActiveState, reader: Reader) -> str:
    """`called t3 taxi_price(hotel="Aurora"): 14 dollars`. A long result is left to its id."""
    call, result = state.calls[evidence], state.results[evidence]
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    if len(arguments) > psa.INLINE_CHARS:
        arguments = arguments[: psa.INLINE_CHARS - 3] + "..."
    outcome = f"failed ({result.failure.kind})" if result.failure else "done"
    if result.size_chars <= psa.INLINE_CHARS:
        outcome = " ".join(psa.raw_text(evidence, state, reader).split()) or outcome
    return f"called {evidence} {call.name}({arguments}): {outcome}"


def observation_text(observation: Observation, state: ActiveState, reader: Reader, page_chars: int) -> str:
    """Segment [7]."""
    parts: list[str] = []
    for evidence in observation.results:
        text, page, pages = psa.page_text(evidence, state, reader, page_chars)
        name = state.calls[evidence].name
        parts.append(f"{evidence} {name}{_page_note(evidence, page, pages)}: {text.rstrip()}")
    parts.extend(f"refused {refusal_text(refusal)}" for refusal in observation.refusals)
    parts.extend(observation.notes)
    return (
        "OBSERVATION\n"
        + ("\n".join(parts) or "(none)")
        + f"\nWrite step {observation.step}. {observation.advice}\n"
    )


def raw_buffer_text(
    steps: Iterable[Sequence[Event]],
    state: ActiveState,
    context: Context,
    shown: Collection[EvidenceId] = (),
) -> str:
    """Segment [6]: what the model wrote and what its tools brought, verbatim; "" if there is nothing.

    Results that the observation shows anyway are left to it; of a long one the first page stands here.
    """
    parts: list[str] = []
    for event in (event for events in steps for event in events):
        if isinstance(event, ModelReplied) and not event.fault:
            parts.append(f"step {event.step}: {event.text}")
        elif isinstance(event, ToolFinished) and event.evidence not in shown:
            text, page, pages = psa.page_text(event.evidence, state, context.reader, context.page_chars)
            parts.append(
                f"{event.evidence} {event.name}{_page_note(event.evidence, page, pages)}: {text.rstrip()}"
            )
    return "\n".join(["LAST STEPS", *parts, ""]) if parts else ""


def refusal_text(refusal: Refusal) -> str:
    """One refusal as the model reads it."""
    return f"{refusal.subject}: {refusal.rule}: {refusal.advice}"


def _page_note(opened: str, page: int, pages: int) -> str:
    if pages == 1:
        return ""
    more = f", open {first_page(opened)}#{page + 1} for the next" if page < pages else ""
    return f" (page {page} of {pages}{more})"


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Tokens of several segments, each encoded alone."""
    return sum(len(tokenizer.encode(text)) for text in texts)
