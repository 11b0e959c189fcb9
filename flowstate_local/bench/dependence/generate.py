"""From a plot to an episode: distractors in between, raw texts as long as asked for, and the tools.

Deterministic: the same family, domain, number and knobs give the same episode, on every machine.
"""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flowstate_local.bench.dependence.domains import DOMAINS, Domain
from flowstate_local.bench.dependence.families import FAMILIES, HELD_OUT, Plot, read
from flowstate_local.bench.episode import Ask, Episode, Note, World
from flowstate_local.calculator import evaluate
from flowstate_local.errors import ToolError, UsageError
from flowstate_local.tools import Toolbox, tool

MOST_REQUESTS = 200
FIND = (
    "What this needs was looked up in an earlier request: find it there first. Then call decide with one of:"
)
CLOSED = "the papers are closed now; what they said was looked up in an earlier request"
"""In the question nothing can be looked up again, or no memory would be needed."""


@dataclass(frozen=True)
class Knobs:
    """How hard the episodes are."""

    requests: int = 6
    """Requests of an episode, the question included; what the plot doesn't need is unrelated business."""
    raw_chars: int = 1_200
    """Characters of a raw result, about."""
    hops: int = 1
    """Papers in a row before the fact: with 3, the first refers to an annex, which refers to another, which has it."""
    apart: bool = True
    """Whether the unrelated business stands between the plot and its question, or before it."""


def episodes(
    knobs: Knobs, *, per_cell: int = 1, seed: int = 0, held_out: bool | None = None
) -> Iterator[Episode]:
    """Every family in every domain, so many each. The first eight are of eight families.

    Args:
        knobs: how hard.
        per_cell: episodes per family and domain.
        seed: other seeds, other names and numbers.
        held_out: only the families that are kept apart, or only the others; None for all.

    Raises:
        UsageError: fewer requests than a plot has, or too many.
    """
    for number in range(per_cell):
        for domain in DOMAINS:
            for family in FAMILIES:
                if held_out is None or held_out == (family in HELD_OUT):
                    yield episode(family, domain, number, knobs, seed=seed)


def episode(family: str, domain: Domain, number: int, knobs: Knobs, *, seed: int = 0) -> Episode:
    """One episode. Raises UsageError."""
    rng = random.Random(f"{seed}/{family}/{domain.name}/{number}")
    plot = FAMILIES[family](rng, domain)
    _lead_on(plot, knobs.hops)
    if not len(plot.asks) <= knobs.requests <= MOST_REQUESTS:
        raise UsageError(
            f"an episode of family {family} has {len(plot.asks)} to {MOST_REQUESTS} requests, not {knobs.requests}"
        )
    errands = _errands(rng, domain, knobs.requests - len(plot.asks))
    last = replace(plot.asks[-1], text=f"{plot.asks[-1].text} {FIND} {', '.join(plot.options)}.")
    before = [*plot.asks[:-1], *errands] if knobs.apart else [*errands, *plot.asks[:-1]]
    documents = {topic: _document(rng, topic, fact, knobs.raw_chars) for topic, fact in plot.facts.items()}
    for errand in errands:
        topic = str(errand.calls[0][1]["topic"])
        fact = f"For {topic}, number {rng.randrange(100, 999)} is the one to call."
        documents[topic] = _document(rng, topic, fact, knobs.raw_chars)
    return Episode(
        id=f"{family}-{domain.name}-{seed}-{number}",
        family=family,
        domain=domain.name,
        held_out=family in HELD_OUT,
        asks=tuple(_dated([*before, last])),
        truth=plot.truth,
        options=plot.options,
        documents=documents,
    )


def _lead_on(plot: Plot, hops: int) -> None:
    """Move the first fact of a plot behind annexes that are looked up in requests of their own."""
    topic, fact = next(iter(plot.facts.items()))
    first = topic
    place = next(i for i, ask in enumerate(plot.asks) if ("look_up", {"topic": topic}) in ask.calls)
    chain = [plot.asks[place].notes[0].name]
    for number in range(1, hops):
        annex = f"annex {number} of {first}"
        plot.facts[topic] = f"What applies here in particular stands in {annex}."
        note = Note(
            f"annex_{number}",
            "knowledge",
            f"Further conditions for {first}, part {number}",
            (("derives", chain[-1]),),
        )
        plot.asks.insert(
            place + number,
            read(annex, f"{topic} refers to it", note, text=f"Look up {annex} and keep it in mind."),
        )
        chain.append(note.name)
        topic = annex
    plot.facts[topic] = fact
    last = plot.asks[-1]
    opens = [name for old in last.opens for name in (chain if old == chain[0] else [old])]
    plot.asks[-1] = replace(last, opens=tuple(opens))


def _errands(rng: random.Random, domain: Domain, n: int) -> list[Ask]:
    """Unrelated business: things to look up that nobody will need."""
    errands = []
    for i in range(n):
        name = domain.errands[i % len(domain.errands)]
        topic = name if i < len(domain.errands) else f"{name}, part {i // len(domain.errands) + 1}"
        note = Note(f"errand_{i}", "knowledge", f"About {topic}")
        errands.append(read(topic, "just in case", note, text=f"Look up {topic}."))
    rng.shuffle(errands)
    return errands


def _dated(asks: list[Ask]) -> Iterator[Ask]:
    for day, ask in enumerate(asks):
        date = f"2026-{3 + day // 28:02}-{day % 28 + 1:02}" if day < 28 * 9 else "2026-12-31"
        yield replace(ask, date=date)


_CLAUSES = (
    "This page is kept for reference and replaces earlier pages on the matter.",
    "Questions are answered at the desk on working days, in the order in which they arrive.",
    "Whoever finds a mistake here is asked to report it, with the line and the date.",
    "Copies may be made for one's own use as long as they are complete.",
    "The wording of the printed page decides where the two differ.",
    "Nothing here limits rights that the law gives, and nothing adds to them.",
    "Names of products are used for description and belong to their owners.",
    "Access can be closed for maintenance, of which notice is given at the entrance.",
    "Lost property is kept for a month and then given away.",
    "Decisions of the committee are published once a quarter.",
)


def _document(rng: random.Random, topic: str, fact: str, raw_chars: int) -> str:
    """The fact at a place drawn by chance, among clauses that don't matter."""
    clauses: list[str] = []
    while sum(map(len, clauses)) + len(fact) < raw_chars:
        clauses.append(rng.choice(_CLAUSES))
    clauses.insert(rng.randint(0, len(clauses)), fact)
    return "\n".join([f"About {topic}", *(f"{i}. {clause}" for i, clause in enumerate(clauses, start=1))])


def tools_of(world: World, episode: Episode) -> Toolbox:
    """The tools of an episode: look things up, calculate, decide."""

    @tool(idempotent=True)
    def look_up(topic: str) -> str:
        """Look up the papers about a topic, such as a name.

        Args:
            topic: As the request names it.
        """
        if world.asked:
            raise ToolError(CLOSED, kind="closed")
        named = _named(topic, episode.documents)
        if not named:
            raise ToolError(f"there are no papers about {topic!r}", kind="not_found")
        if len(named) > 1:
            raise ToolError(f"there are papers about {', '.join(named)}; name one", kind="ambiguous")
        return episode.documents[named[0]]

    @tool
    def decide(answer: str) -> str:
        """Give the decision that the request asks for.

        Args:
            answer: One of the options, word for word.
        """
        if not world.asked:
            raise ToolError("nothing is to be decided now", kind="no_question")
        chosen = answer.strip().casefold()
        option = next((option for option in episode.options if option.casefold() == chosen), None)
        if option is None:
            raise ToolError(f"the options are: {', '.join(episode.options)}", kind="unknown_option")
        world.answer = world.answer or option
        return f"Decided: {option}."

    @tool(name="calculate", idempotent=True)
    def compute(expression: str) -> str:
        """Calculate or compare, such as 160 + 80 < 200."""
        return evaluate(expression)

    return Toolbox([look_up, decide, compute])


def _named(asked: str, topics: Iterable[str]) -> list[str]:
    """The topics that somebody means who asks for "ferry" or "Hotel Aurora booking terms".

    Whether a model copies a title to the letter isn't what this measures.
    """
    words = _words(asked)
    by_words = {topic: _words(topic) for topic in topics}
    same = [topic for topic, own in by_words.items() if own == words]
    within = [topic for topic, own in by_words.items() if own < words]
    # Of titles that are all in the words, the most particular: an annex names what it belongs to.
    within = [one for one in within if not any(by_words[one] < by_words[other] for other in within)]
    return same or within or [topic for topic, own in by_words.items() if words and words < own]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold())) - {"the", "of", "a"}
