"""Who makes no mistake: what a perfect agent would write in an episode, for each form of agent.

With its decisions a comparison of token counts doesn't depend on a model's wit, and playing it proves that an episode
can be solved.
"""

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from flowstate_local.baselines.react import dump_react
from flowstate_local.bench.episode import Ask, Episode, Note
from flowstate_local.bench.rehearsal import RehearsedEngine
from flowstate_local.nodes import NodeType
from flowstate_local.protocol import StepOutput
from flowstate_local.testing import step

LOOK = 2
"""Ids per look."""
WINDOW = 200_000
"""Tokens, so that no method overflows: what each would need is the question."""


class OracleEngine(RehearsedEngine):
    """Plays a perfect agent in the form of one method. The upkeep of a memory gets text of a plausible length.

    Args:
        episode: what is played.
        method: name of the method.
    """

    name = "oracle"
    model = "none: every decision is scripted"

    def __init__(self, episode: Episode, method: str) -> None:
        super().__init__(_script_of(episode, method), context_window=WINDOW)


def _script_of(episode: Episode, method: str) -> Iterator[StepOutput] | Iterator[str]:
    if method in ("flowstate", "flowstate_raw"):
        return flowstate_script(episode)
    if method == "without_isu":
        return without_isu_script(episode)
    return without_psa_script(episode) if method == "without_psa" else react_script(episode)


def react_script(episode: Episode) -> Iterator[str]:
    """The steps of a plain agent, whatever its memory: the calls, one by one, and the reply.

    What the request needs from earlier ones stands in its memory, or it would look it up again; a perfect agent with
    everything in its context only decides.
    """
    for ask in episode.asks:
        for name, arguments in ask.calls:
            yield dump_react("I do what was asked.", [(name, dict(arguments))])
        yield dump_react("Done.", message=ask.reply)


def flowstate_script(episode: Episode) -> Iterator[StepOutput]:
    """The steps of a FlowState agent: open what is needed, down to the raw results; act; write down; reply."""
    book = _Book()
    for ask in episode.asks:
        yield from book.play(ask)


def without_psa_script(episode: Episode) -> Iterator[StepOutput]:
    """The steps of the ablation without PSA: as above, but nothing is opened; what is needed stands in the state."""
    yield from flowstate_script(replace(episode, asks=tuple(replace(a, opens=()) for a in episode.asks)))


def without_isu_script(episode: Episode) -> Iterator[StepOutput]:
    """The steps of the ablation without ISU: open the nodes of the requests that matter and their results; act; reply."""
    made_in = {note.name: place for place, ask in enumerate(episode.asks, 1) for note in ask.notes}
    results = itertools.accumulate(len(ask.calls) for ask in episode.asks)
    last_of = dict(enumerate(results, start=1))
    for ask in episode.asks:
        for start in range(0, len(ask.opens), LOOK):
            requests = [made_in[name] for name in ask.opens[start : start + LOOK]]
            yield step(focus=[f"n{number}" for number in requests])
            raw = [f"t{last_of[number]}" for number in requests if episode.asks[number - 1].calls]
            if raw:
                yield step(focus=raw)
        for name, arguments in ask.calls:
            yield step(calls=[(name, dict(arguments))])
        yield step(message=ask.reply)


@dataclass
class _Book:
    """Which ids the notes and raw results of an episode have."""

    nodes: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, list[str]] = field(default_factory=dict)
    """Name of a note -> the raw results it cites."""
    n_nodes: int = 0
    n_results: int = 0
    _n_facts: int = 0

    def play(self, ask: Ask) -> Iterator[StepOutput]:
        """The steps of one request."""
        unwritten = yield from self._read(ask.opens)
        first = self.n_results + 1
        for name, arguments in ask.calls:
            # What was seen is written down before it is acted upon.
            if self.n_results >= first:
                unwritten = [f"t{self.n_results}"]
            delta = [self._fact(unwritten)] if unwritten else []
            yield step(delta=delta, calls=[(name, dict(arguments))])
            self.n_results += 1
            unwritten = []
        results = [f"t{i}" for i in range(first, self.n_results + 1)]
        nodes = [self._node(note, results[-1:] if note.evidence else []) for note in ask.notes]
        if results:
            yield step(delta=nodes, message=ask.reply)
            return
        if nodes:
            yield step(delta=nodes)
        yield step(message=ask.reply)

    def _read(self, names: tuple[str, ...]) -> Generator[StepOutput, None, list[str]]:
        """Open notes and then what they rest on, a few at a time; the raw results that are not written down yet.

        While an agent follows links, only links are offered; a note brings the index back.
        """
        raw: list[str] = []
        for start in range(0, len(names), LOOK):
            if start:
                yield step(delta=[self._fact(raw)])
            chunk = names[start : start + LOOK]
            yield step(focus=[self.nodes[name] for name in chunk])
            raw = list(dict.fromkeys(t for name in chunk for t in self.evidence[name]))
            if raw:
                yield step(focus=raw)
        return raw

    def _fact(self, evidence: list[str]) -> dict[str, Any]:
        self._n_facts += 1
        kind: NodeType = "knowledge" if evidence else "judgement"
        return self._node(
            Note(f"fact_{self._n_facts}", kind, f"What bears on it, part {_letters(self._n_facts)}"),
            evidence[:1],
        )

    def _node(self, note: Note, evidence: list[str]) -> dict[str, Any]:
        self.n_nodes += 1
        node_id = f"n{self.n_nodes}"
        self.nodes[note.name] = node_id
        self.evidence[note.name] = evidence
        refs = [{"relation": relation, "target": self.nodes[target]} for relation, target in note.refs[:1]]
        return {"type": note.type, "id": node_id, "refs": refs, "evidence": evidence, "summary": note.summary}


def _letters(number: int) -> str:
    """A number without digits: a number in a fact must have been read."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))
