"""The story: six requests on given dates, their variants, and the verdict."""

import random
from dataclasses import dataclass

from flowstate_local.demo.desk import Desk, Trip
from flowstate_local.events import Disclosed, Event, ToolStarted
from flowstate_local.nodes import EVIDENCE_ID, NODE_ID, NodeId, RequestId
from flowstate_local.repository import Reader

CLASSIC = Trip(
    guest="Ana",
    city="Lisbon",
    origin="Porto",
    booked="Hotel Aurora",
    cheaper="Hotel Belmar",
    price_booked=200,
    price_cheaper=160,
    fee=80,
    train_price=31,
    taxi_price=14,
)
"""The paper's figure 1: keeping costs 200; changing 160 and a fee of 80, so 240."""

_GUESTS = ["Ana", "Bilal", "Chen", "Dora", "Emre", "Fatou", "Greta", "Hugo", "Ines", "Jonas"]
_PLACES = [
    ("Lisbon", "Porto"),
    ("Vienna", "Graz"),
    ("Lyon", "Paris"),
    ("Osaka", "Tokyo"),
    ("Turin", "Rome"),
    ("Krakow", "Warsaw"),
    ("Seville", "Madrid"),
    ("Ghent", "Brussels"),
]
_HOTELS = [
    "Aurora",
    "Belmar",
    "Castel",
    "Delmonte",
    "Estrela",
    "Fontana",
    "Gloria",
    "Horizon",
    "Imperial",
    "Jardim",
]


@dataclass(frozen=True)
class Ask:
    """One request of the story."""

    date: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What the model did with request 6, against the truth."""

    truth: str
    answer: str
    """What the desk was told, "" if the offer was never answered."""
    right: bool
    opened_decision: bool
    """It opened the booking decision of request 1, or a node of that request."""
    opened_evidence: bool
    """It opened the raw terms, in which the fee stands, before it answered."""
    calculated: bool


def variant(number: int, seed: int = 0) -> Trip:
    """Variant 0 is the paper's case. Others have other names and numbers; every second one should be accepted."""
    if number == 0:
        return CLASSIC
    rng = random.Random(f"{seed}/{number}")
    booked, cheaper = rng.sample(_HOTELS, 2)
    city, origin = rng.choice(_PLACES)
    price = rng.randrange(120, 420, 5)
    saving = rng.randrange(25, 70, 5)
    # A fee clearly above or below the saving: the case is about finding the fee, not about close calls.
    fee = saving + rng.randrange(10, 50, 5) if number % 2 == 0 else max(5, saving - rng.randrange(10, 25, 5))
    return Trip(
        guest=rng.choice(_GUESTS),
        city=city,
        origin=origin,
        booked=f"Hotel {booked}",
        cheaper=f"Hotel {cheaper}",
        price_booked=price,
        price_cheaper=price - saving,
        fee=fee,
        train_price=rng.randrange(15, 90),
        taxi_price=rng.randrange(9, 40),
    )


def requests_of(trip: Trip) -> list[Ask]:
    """The six requests. Only the first and the last belong together."""
    return [
        Ask(
            "2026-09-02",
            f"Book {trip.booked} in {trip.city} for {trip.guest}. Plan: we rebook to {trip.cheaper} if that becomes "
            "cheaper.",
        ),
        Ask("2026-09-04", f"Find the trains from {trip.origin} to {trip.city} and book the one at 07:40."),
        Ask("2026-09-05", f"Remember for all trips: {trip.guest} is a vegetarian and wants a quiet room."),
        Ask("2026-09-08", f"What does a taxi from the station to {trip.booked} cost?"),
        Ask("2026-09-10", f"When does our train to {trip.city} leave, and which one is it?"),
        Ask(
            "2026-09-12",
            f"{trip.cheaper} now costs {trip.price_cheaper} dollars and offers to rebook us. Calculate what changing "
            f"from {trip.booked} would cost in all, then answer the offer: accept it only if that is less than what "
            "we have.",
        ),
    ]


def judge(desk: Desk, events: list[Event], reader: Reader) -> Verdict:
    """The verdict, from the desk's state and the log of request 6."""
    trip = desk.trip
    answer = desk.answer
    opened: list[str] = []
    calculated = False
    for event in events:
        if isinstance(event, Disclosed):
            opened.extend(event.granted)
        if isinstance(event, ToolStarted):
            calculated = calculated or event.name == "calculate"
            if event.name == "answer_offer":
                break
    first = [reader.node(NodeId(i)) for i in opened if NODE_ID.match(i)]
    raw = [reader.evidence(i) for i in (o.split("#")[0] for o in opened) if EVIDENCE_ID.match(i)]  # type: ignore[arg-type]
    return Verdict(
        truth=trip.truth,
        answer=answer,
        right=answer == trip.truth,
        opened_decision=any(node is not None and node.request == RequestId("r1") for node in first),
        opened_evidence=any(record is not None and record.tool == "book_hotel" for record in raw),
        calculated=calculated,
    )
