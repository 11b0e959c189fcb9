"""The story played without a model: what a good model would write, for `--engine scripted`.

It knows the trip's names; the fee it reads out of the prompt, where it stands only after the evidence was opened.
"""

import re
from collections.abc import Iterator

from flowstate_local.demo.desk import Trip
from flowstate_local.protocol import StepOutput
from flowstate_local.testing import ScriptedEngine, step


class Player:
    """Says the next step of the story; create one for each variant."""

    def __init__(self, trip: Trip) -> None:
        self._prompt = ""
        self._steps = self._story(trip)

    def __call__(self, prompt: str) -> StepOutput:
        """The step for this prompt."""
        self._prompt = prompt
        return next(self._steps)

    def _story(self, trip: Trip) -> Iterator[StepOutput]:
        booked, cheaper = trip.booked, trip.cheaper
        yield step(calls=[("book_hotel", {"hotel": booked})])
        yield step(
            delta=[
                _node("knowledge", "n1", f"Booking terms of {booked}", evidence=["t1"]),
                _node(
                    "judgement",
                    "n2",
                    f"Booked {booked} for {trip.price_booked}; rebook to {cheaper} if cheaper",
                    refs=[("supports", "n1")],
                ),
            ],
            message=f"{booked} is booked for {trip.price_booked} dollars.",
        )
        yield step(calls=[("find_trains", {"origin": trip.origin, "destination": trip.city})])
        train = f"T{trip.train_price}1"
        yield step(
            delta=[
                _node(
                    "knowledge", "n3", f"{train} leaves at 07:40, costs {trip.train_price}", evidence=["t2"]
                )
            ],
            calls=[("book_train", {"train": train})],
        )
        summary = f"Booked the 07:40 train to {trip.city} for {trip.train_price}"
        yield step(
            delta=[_node("judgement", "n4", summary, refs=[("derives", "n3")], evidence=["t3"])],
            message="The 07:40 train is booked.",
        )
        yield step(delta=[_node("preference", "n5", f"{trip.guest} is a vegetarian and wants a quiet room")])
        yield step(message="Noted.")
        yield step(calls=[("taxi_price", {"hotel": booked})])
        yield step(
            delta=[
                _node("attribute", "n6", f"Taxi from station to {booked}: {trip.taxi_price}", evidence=["t4"])
            ],
            message=f"It costs {trip.taxi_price} dollars.",
        )
        yield step(focus=["n4"])
        yield step(message=f"Train {train} leaves at 07:40.")
        yield from self._decide(trip)

    def _decide(self, trip: Trip) -> Iterator[StepOutput]:
        """Request 6: the decision, its terms, the evidence, the sum, the answer."""
        yield step(focus=["n2", "n1"])
        yield step(focus=["t1"])
        found = re.search(r"cancellation fee of (\d+) dollars", self._prompt)
        fee = int(found[1]) if found else 0
        fact = f"Leaving {trip.booked} costs a fee of {fee}"
        yield step(
            delta=[_node("attribute", "n7", fact, refs=[("derives", "n1")], evidence=["t1"])],
            calls=[("calculate", {"expression": f"{trip.price_cheaper} + {fee} < {trip.price_booked}"})],
        )
        cost = trip.price_cheaper + fee
        change = cost < trip.price_booked
        summary = (
            f"Change to {trip.cheaper}: {cost} in all"
            if change
            else f"Keep {trip.booked}: changing costs {cost}"
        )
        yield step(
            delta=[
                _node(
                    "judgement",
                    "n8",
                    summary,
                    refs=[("supersedes", "n2"), ("supports", "n7")],
                    evidence=["t5"],
                )
            ],
            calls=[("answer_offer", {"hotel": trip.cheaper, "answer": "accept" if change else "decline"})],
        )
        yield step(
            delta=[
                _node(
                    "knowledge",
                    "n9",
                    f"{trip.cheaper} has our answer",
                    refs=[("follows", "n8")],
                    evidence=["t6"],
                )
            ],
            message=f"{summary}, against {trip.price_booked}.",
        )


def scripted_engine(trip: Trip) -> ScriptedEngine:
    """An engine that plays the story of `trip`, every step checked against the grammar of its moment."""
    return ScriptedEngine(Player(trip), context_window=16_384)


def _node(
    type_: str,
    id_: str,
    summary: str,
    *,
    refs: list[tuple[str, str]] | None = None,
    evidence: list[str] | None = None,
) -> dict[str, object]:
    return {
        "type": type_,
        "id": id_,
        "summary": summary,
        "refs": [{"relation": relation, "target": target} for relation, target in refs or []],
        "evidence": evidence or [],
    }
