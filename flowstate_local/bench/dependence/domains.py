"""Surface domains: what the same plot is about, in words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """Names and words of one domain."""

    name: str
    items: tuple[str, ...]
    """Things that can be had; their order is shuffled."""
    people: tuple[str, ...]
    take: str
    """Verb for committing to an item."""
    terms: str
    """What the papers of an item are called."""
    qualities: tuple[str, ...]
    places: tuple[str, ...]
    parts: tuple[str, ...]
    """Things that must fit together."""
    errands: tuple[str, ...]
    """Unrelated topics, to look up in between."""


DOMAINS = (
    Domain(
        name="travel",
        items=(
            "Hotel Aurora",
            "Hotel Belmar",
            "Hotel Castel",
            "Hotel Delmonte",
            "Hotel Estrela",
            "Hotel Fontana",
        ),
        people=("Ana", "Bilal", "Chen", "Dora", "Emre", "Fatou"),
        take="book",
        terms="booking terms",
        qualities=("a quiet room", "a sea view", "a pool", "a garden"),
        places=("Lisbon", "Porto", "Seville", "Lyon", "Ghent", "Turin"),
        parts=("rail pass", "seat voucher", "lounge card", "luggage tag", "transfer ticket"),
        errands=(
            "the museum",
            "the ferry",
            "the night bus",
            "the bakery",
            "the city map",
            "the laundry",
            "the pharmacy",
        ),
    ),
    Domain(
        name="office",
        items=("Printer K1", "Printer K2", "Printer L5", "Printer M3", "Printer N7", "Printer P9"),
        people=("Greta", "Hugo", "Ines", "Jonas", "Kim", "Lars"),
        take="order",
        terms="supplier terms",
        qualities=("double-sided printing", "a quiet fan", "low power", "a scanner"),
        places=("Hall A", "Hall B", "the annex", "the depot", "the lab", "the archive"),
        parts=("dock", "cable", "adapter", "screen", "stand"),
        errands=(
            "the canteen",
            "the parking",
            "the fire drill",
            "the mail room",
            "the plants",
            "the badge",
            "the heating",
        ),
    ),
    Domain(
        name="clinic",
        items=("Plan Acer", "Plan Betula", "Plan Cedrus", "Plan Dahlia", "Plan Erica", "Plan Ficus"),
        people=("Mara", "Nils", "Olga", "Paul", "Quyen", "Rosa"),
        take="enrol in",
        terms="terms of care",
        qualities=("morning hours", "a ground-floor room", "home visits", "short sessions"),
        places=("Ward 2", "Ward 4", "Ward 5", "the day clinic", "the gym", "the bath"),
        parts=("sensor", "strap", "reader", "charger", "pad"),
        errands=(
            "the library",
            "the garden",
            "the menu",
            "the visiting hours",
            "the chapel",
            "the shop",
            "the bus line",
        ),
    ),
)
