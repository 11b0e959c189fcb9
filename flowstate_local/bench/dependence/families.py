"""Families of dependence: what the last decision needs, and why a summary of it isn't enough.

Each family is a function of chance and a domain that returns a plot: the requests that matter, in order, with the
question last. The fact the question turns on stands in the raw text of a document, among much else.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from flowstate_local.bench.dependence.domains import Domain
from flowstate_local.bench.episode import Ask, Note


@dataclass
class Plot:
    """The requests that matter, the documents behind them, and what is right."""

    truth: str
    options: tuple[str, ...]
    asks: list[Ask] = field(default_factory=list)
    """In order; the last is the question."""
    facts: dict[str, str] = field(default_factory=dict)
    """Topic -> the sentences of its document that matter."""


Family = Callable[[random.Random, Domain], Plot]


def read(topic: str, why: str, note: Note, *, opens: tuple[str, ...] = (), text: str = "") -> Ask:
    """A request to look something up and remember it."""
    return Ask(
        text=text or f"Look up {topic} and keep it in mind: {why}.",
        date="",
        opens=opens,
        calls=(("look_up", {"topic": topic}),),
        notes=(note,),
        reply="I looked it up.",
    )


def question(text: str, answer: str, opens: tuple[str, ...], sum_of: str = "") -> Ask:
    """The question; `sum_of` is what a careful agent calculates first."""
    calculated = (("calculate", {"expression": sum_of}),) if sum_of else ()
    return Ask(
        text=text,
        date="",
        opens=opens,
        calls=(*calculated, ("decide", {"answer": answer})),
        notes=(
            Note("decision", "judgement", f"Decided: {answer}", tuple(("supports", name) for name in opens)),
        ),
        reply=f"Decided: {answer}.",
    )


def fee_behind_cancellation(rng: random.Random, d: Domain) -> Plot:
    """Something cheaper turns up, and leaving what we have costs a fee that only its terms name."""
    old, new = rng.sample(d.items, 2)
    price, gain = rng.randrange(150, 400, 5), rng.randrange(20, 80, 5)
    fee = gain + rng.choice([-1, 1]) * rng.randrange(5, 20, 5)
    change = price - gain + fee < price
    truth = "change" if change else "stay"
    plot = Plot(truth, ("change", "stay"))
    plot.facts[old] = (
        f"{old} costs {price} dollars. Whoever withdraws later pays a cancellation fee of {fee} dollars."
    )
    taken = Note("taken", "judgement", f"We have {old} for {price} dollars; change if something is cheaper")
    plot.asks.append(
        read(
            old,
            "we have it, and change if something becomes cheaper",
            taken,
            text=f"We {d.take} {old}. Look up its {d.terms} and remember that we change if something becomes cheaper.",
        )
    )
    plot.asks.append(
        question(
            f"{new} now costs {price - gain} dollars in place of {old}. Work out what changing would cost in all, and decide: change only if that is less than what we pay.",
            truth,
            ("taken",),
            f"{price - gain} + {fee} < {price}",
        )
    )
    return plot


def exception_behind_a_rule(rng: random.Random, d: Domain) -> Plot:
    """A rule with a limit, and an exception for one place that only its text names."""
    usual, special = rng.sample(d.places, 2)
    limit = rng.randrange(60, 120, 10)
    more = limit + rng.randrange(30, 60, 10)
    where = rng.choice([usual, special])
    amount = rng.randrange(limit + 5, more, 5)
    truth = "allowed" if where == special else "refused"
    plot = Plot(truth, ("allowed", "refused"))
    topic = "the rule on expenses"
    plot.facts[topic] = (
        f"Expenses up to {limit} dollars a day are allowed. As an exception, in {special} up to {more} dollars a day are allowed."
    )
    plot.asks.append(
        read(
            topic,
            "we will need it",
            Note("rule", "knowledge", "The rule on expenses: so much a day, with an exception"),
        )
    )
    plot.asks.append(
        question(
            f"{rng.choice(d.people)} spent {amount} dollars in {where} in one day. Decide by the rule whether that is allowed or refused.",
            truth,
            ("rule",),
        )
    )
    return plot


def superseded_preference(rng: random.Random, d: Domain) -> Plot:
    """A wish that was changed later; the options' papers say what they offer."""
    first, second = rng.sample(d.qualities, 2)
    one, two = rng.sample(d.items, 2)
    person = rng.choice(d.people)
    has_first, has_second = rng.sample([one, two], 2)
    plot = Plot(has_second, (one, two))
    plot.facts[has_first] = f"{has_first} offers {first}."
    plot.facts[has_second] = f"{has_second} offers {second}."
    plot.asks.append(
        Ask(
            f"Remember: {person} wants {first}.",
            "",
            notes=(Note("wish", "preference", f"{person} wants {first}", evidence=False),),
        )
    )
    for name, item in (("papers_a", one), ("papers_b", two)):
        plot.asks.append(
            read(item, "it is one of two to choose from", Note(name, "knowledge", f"Papers of {item}"))
        )
    plot.asks.append(
        Ask(
            f"Remember: {person} no longer wants {first} but {second}.",
            "",
            notes=(
                Note(
                    "new_wish",
                    "preference",
                    f"{person} wants {second}, not {first}",
                    (("supersedes", "wish"),),
                    evidence=False,
                ),
            ),
            opens=("wish",),
        )
    )
    plot.asks.append(
        question(
            f"Decide between {one} and {two} by what {person} wants.",
            has_second,
            ("new_wish", "papers_a", "papers_b"),
        )
    )
    return plot


def expired_offer(rng: random.Random, d: Domain) -> Plot:
    """An offer whose last day stands in its text."""
    item = rng.choice(d.items)
    last, today = rng.sample(range(3, 28), 2)
    truth = "use it" if today <= last else "too late"
    plot = Plot(truth, ("use it", "too late"))
    topic = f"the offer of {item}"
    plot.facts[topic] = f"The offer of {item} may be used up to and including day {last} of the month."
    plot.asks.append(
        read(topic, "we may use it", Note("offer", "knowledge", f"Offer of {item}, valid for a while"))
    )
    plot.asks.append(
        question(
            f"It is day {today} of the month. Decide whether we can use the offer of {item}.",
            truth,
            ("offer",),
            f"{today} <= {last}",
        )
    )
    return plot


def carried_budget(rng: random.Random, d: Domain) -> Plot:
    """What is left of a budget after what was spent, all of it in receipts."""
    spent = [rng.randrange(40, 160, 5) for _ in range(2)]
    price = rng.randrange(60, 200, 5)
    left = price + rng.choice([-1, 1]) * rng.randrange(5, 30, 5)
    budget = sum(spent) + left
    truth = "buy" if price <= left else "leave it"
    plot = Plot(truth, ("buy", "leave it"))
    items = rng.sample(d.items, 3)
    plot.facts["the budget"] = f"The budget of the year is {budget} dollars."
    plot.asks.append(
        read("the budget", "we count against it", Note("budget", "knowledge", "The budget of the year"))
    )
    names = ["budget"]
    for i, (item, cost) in enumerate(zip(items, spent, strict=False)):
        topic = f"the receipt of {item}"
        plot.facts[topic] = f"For {item}, {cost} dollars were paid from the budget."
        plot.asks.append(
            read(
                topic,
                "it was paid from the budget",
                Note(f"receipt_{i}", "knowledge", f"Receipt of {item}", (("follows", names[-1]),)),
            )
        )
        names.append(f"receipt_{i}")
    plot.asks.append(
        question(
            f"{items[2]} costs {price} dollars. Decide whether what is left of the budget after both receipts is enough to buy it.",
            truth,
            tuple(names),
            f"{budget} - {spent[0]} - {spent[1]} >= {price}",
        )
    )
    return plot


def compatibility_chain(rng: random.Random, d: Domain) -> Plot:
    """Three papers in a row say what fits what; the last one names the answer."""
    first, second = rng.sample(d.parts, 2)
    sizes = rng.sample(["M4", "M5", "M6", "M8", "M10"], 3)
    thread, wrong, other = sizes
    plot = Plot(f"size {thread}", tuple(f"size {s}" for s in sorted(sizes)))
    plot.facts[f"the {first}"] = (
        f"The {first} takes only a {second} of series {rng.choice('ABC')}7. Its own thread is {wrong}."
    )
    plot.facts[f"the {second}"] = (
        f"A {second} of series 7 needs a screw of size {thread}; older series needed {other}."
    )
    plot.asks.append(read(f"the {first}", "we have it", Note("first", "knowledge", f"What fits the {first}")))
    plot.asks.append(
        read(
            f"the {second}",
            f"it goes with the {first}",
            Note("second", "knowledge", f"What the {second} needs", (("derives", "first"),)),
        )
    )
    plot.asks.append(
        question(
            f"Decide which screw we buy for the {second} that goes on our {first}.",
            f"size {thread}",
            ("first", "second"),
        )
    )
    return plot


def copied_plan(rng: random.Random, d: Domain) -> Plot:
    """The same again for somebody else: what exactly, stands in the first one's papers."""
    one, two, three = rng.sample(d.people, 3)
    codes = rng.sample([f"{letter}{n}" for letter in "RSTU" for n in range(10, 99)], 3)
    plot = Plot(codes[0], tuple(sorted(codes)))
    for person, code in ((one, codes[0]), (three, codes[1])):
        plot.facts[f"the arrangement of {person}"] = (
            f"{person} has arrangement {code}, at {rng.choice(d.places)}."
        )
        plot.asks.append(
            read(
                f"the arrangement of {person}",
                "somebody may want the same",
                Note(f"plan_{person.lower()}", "knowledge", f"Arrangement of {person}"),
            )
        )
    plot.asks.append(
        Ask(
            f"Remember: {two} wants what {one} has, not what {three} has.",
            "",
            opens=(f"plan_{one.lower()}",),
            notes=(
                Note(
                    "same",
                    "preference",
                    f"{two} wants the arrangement of {one}",
                    (("follows", f"plan_{one.lower()}"),),
                    evidence=False,
                ),
            ),
        )
    )
    plot.asks.append(
        question(f"Decide which arrangement {two} gets.", codes[0], ("same", f"plan_{one.lower()}"))
    )
    return plot


def reopened_decision(rng: random.Random, d: Domain) -> Plot:
    """The cheapest was chosen; its price rises, and what the others cost stands where the choice was made."""
    a, b, c = rng.sample(d.items, 3)
    low = rng.randrange(80, 120, 5)
    costs = {a: low, b: low + rng.randrange(10, 25, 5), c: low + rng.randrange(30, 50, 5)}
    # Half of the time it stays the cheapest.
    risen = costs[b] + (rng.choice([4, 9]) if rng.random() < 0.5 else -rng.choice([2, 4]))
    now = {**costs, a: risen}
    truth = min(now, key=lambda item: now[item])
    plot = Plot(truth, (a, b, c))
    topic = "the comparison of offers"
    plot.facts[topic] = " ".join(f"{item} costs {cost} dollars a month." for item, cost in costs.items())
    chosen = Note("chosen", "judgement", f"Chose {a} because it was the cheapest of three")
    plot.asks.append(read(topic, f"we choose {a}, the cheapest", chosen))
    plot.asks.append(
        question(
            f"{a} now costs {now[a]} dollars a month. Decide anew which of {a}, {b} and {c} is the cheapest.",
            truth,
            ("chosen",),
        )
    )
    return plot


TRAIN: dict[str, Family] = {
    "fee": fee_behind_cancellation,
    "exception": exception_behind_a_rule,
    "preference": superseded_preference,
    "offer": expired_offer,
    "budget": carried_budget,
}
HELD_OUT: dict[str, Family] = {
    "chain": compatibility_chain,
    "copy": copied_plan,
    "reopen": reopened_decision,
}
FAMILIES = TRAIN | HELD_OUT
