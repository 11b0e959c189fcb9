"""A small travel desk: the data and the tools of the demo. Everything it knows is generated from one `Trip`."""

from dataclasses import dataclass, field
from typing import Literal

from flowstate_local.calculator import calculate
from flowstate_local.errors import ToolError
from flowstate_local.tools import Toolbox, tool


@dataclass(frozen=True)
class Trip:
    """Names and numbers of one variant of the story. Prices are whole dollars."""

    guest: str
    city: str
    origin: str
    booked: str
    """Hotel that request 1 books."""
    cheaper: str
    """Hotel that becomes cheaper."""
    price_booked: int
    price_cheaper: int
    """What the cheaper hotel costs by request 6."""
    fee: int
    """What cancelling the booked hotel costs; stands only in its terms."""
    train_price: int
    taxi_price: int

    @property
    def changing_costs(self) -> int:
        """New price and fee together."""
        return self.price_cheaper + self.fee

    @property
    def truth(self) -> Literal["accept", "decline"]:
        """The right answer to the offer of request 6."""
        return "accept" if self.changing_costs < self.price_booked else "decline"


@dataclass
class Desk:
    """What the tools act on. The verdict is read from `answer`."""

    trip: Trip
    bookings: list[str] = field(default_factory=list)
    """Hotels that are booked."""
    offer_open: bool = False
    """Whether the cheaper hotel has made its offer."""
    answer: str = ""
    """What the offer was answered, "" before it was."""


def tools_of(desk: Desk) -> Toolbox:
    """The desk's tools, bound to its data."""
    trip = desk.trip

    @tool
    def book_hotel(hotel: str) -> str:
        """Book a hotel. Returns the booking and its full terms.

        Args:
            hotel: Its name alone, such as "Hotel Sol".
        """
        name = _known(hotel, [trip.booked, trip.cheaper], "hotel")
        price = trip.price_booked if name == trip.booked else trip.price_cheaper
        if desk.bookings:
            raise ToolError(f"{desk.bookings[0]} is booked for these nights already", kind="conflict")
        desk.bookings.append(name)
        fee = trip.fee if name == trip.booked else 0
        return f"Booked {name}, {trip.city}, 2 nights, {price} dollars.\n{terms(name, trip.city, fee)}"

    @tool(idempotent=True)
    def find_trains(origin: str, destination: str) -> str:
        """List trains between two cities, with departure times and prices."""
        _known(destination, [trip.city, trip.origin], "city")
        early, late = trip.train_price, trip.train_price + 18
        return f"T{early}1 at 07:40 for {early} dollars. T{late}2 at 12:10 for {late} dollars."

    @tool
    def book_train(train: str) -> str:
        """Book a train by its number."""
        return f"Booked train {train}, 1 seat."

    @tool(idempotent=True)
    def taxi_price(hotel: str) -> str:
        """Tell what a taxi from the station to a hotel costs."""
        return f"Station to {hotel}: {trip.taxi_price} dollars, 15 minutes."

    @tool
    def answer_offer(hotel: str, answer: Literal["accept", "decline"]) -> str:
        """Answer a hotel's offer to rebook. Accepting cancels the present booking at its terms.

        Args:
            hotel: The hotel that makes the offer.
            answer: accept to change to that hotel, decline to stay.
        """
        if not desk.offer_open:
            raise ToolError("no hotel has made an offer", kind="not_found")
        name = _known(hotel, [trip.cheaper], "offer of hotel")
        if desk.answer:
            raise ToolError(f"the offer of {name} is answered already: {desk.answer}", kind="closed")
        desk.answer = answer
        return f"The offer of {name} is answered: {answer}. Done."

    return Toolbox([book_hotel, find_trains, book_train, taxi_price, answer_offer, calculate])


def terms(hotel: str, city: str, fee: int) -> str:
    """A long document in which the fee is one clause of twenty."""
    cancellation = (
        f"A guest may cancel until 18:00 on the day before arrival. For each cancelled booking {hotel} keeps a "
        f"cancellation fee of {fee} dollars, whatever the reason and however early the notice is given. The fee is "
        "taken from the card on file. A change of dates within the same season is not a cancellation."
        if fee
        else "A guest may cancel until 18:00 on the day before arrival without any charge."
    )
    clauses = {
        "Scope": f"These terms apply to every stay at {hotel}, {city}, however it was booked.",
        "Arrival": "Rooms are ready from 15:00. Guests who come earlier may leave their bags at the desk.",
        "Departure": "Rooms are to be free by 11:00. A later hour can be asked for until the evening before.",
        "Identity": "Every adult guest shows a passport or an identity card on arrival, as the law asks.",
        "Payment": "The price of the stay is charged to the card on file on the day of arrival.",
        "Tax": "The city's visitor tax is part of the price and is handed on by the house.",
        "Breakfast": "Breakfast is served from 06:30 to 10:00 in the hall on the first floor, on Sundays to 10:30.",
        "Quiet": "Between 22:00 and 07:00 guests keep the corridors and the courtyard quiet.",
        "Smoking": "All rooms are smoke-free. The terrace on the fourth floor has a corner for smokers.",
        "Pets": "Small dogs are welcome after a word with the desk; they may not come into the breakfast hall.",
        "Parking": "The garage has nine places, which cannot be reserved. Bicycles stand in the courtyard.",
        "Children": "Children sleep in their parents' room. Cots and high chairs are lent without charge.",
        "Internet": "Wireless access is open to all guests. The house does not watch or store what they do.",
        "Cancellation": cancellation,
        "Lost property": "What guests forget is kept for three months and sent on at the guest's cost.",
        "Safe": "Each room has a safe. For valuables left elsewhere the house answers only as the law asks.",
        "Damage": "Damage is reported to the desk at once. Ordinary wear is never charged to a guest.",
        "Data": "Personal data serve the stay alone and are erased when the law no longer asks for them.",
        "Complaints": "A guest who is not content speaks to the desk first, then writes to the management.",
        "Law": "Where a clause cannot stand, the others do. The law of the country of the house applies.",
    }
    lines = [f"{number}. {title}. {text}" for number, (title, text) in enumerate(clauses.items(), start=1)]
    return f"Booking terms of {hotel}\n" + "\n".join(lines)


def _same(said: str, name: str) -> bool:
    """Is `name` what was said? "Aurora in Lisbon" means Hotel Aurora."""
    return name.casefold().removeprefix("hotel ") in said.casefold()


def _known(said: str, names: list[str], what: str) -> str:
    for name in names:
        if _same(said, name):
            return name
    raise ToolError(f"unknown {what} {said!r}; known: {', '.join(names)}", kind="not_found")
