"""The six look-ups of the travel world, over TravelPlanner's tables in a folder of the user's, and the plan's hand-in."""

import csv
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

from flowstate_local.bench.memory_arena.rows import Day
from flowstate_local.errors import ToolError, UsageError
from flowstate_local.tools import Tool, Toolbox, tool

Row = Mapping[str, str]
HINT = (
    "TravelPlanner's database (https://github.com/OSU-NLP-Group/TravelPlanner) has the tables; name its folder with "
    "--set tables=DIR."
)
FILES = {
    "restaurants": "restaurants/clean_restaurant_2022.csv",
    "accommodations": "accommodations/clean_accommodations_2022.csv",
    "attractions": "attractions/attractions.csv",
    "distances": "googleDistanceMatrix/distance.csv",
    "cities": "background/citySet_with_states.txt",
}
FLIGHTS = "flights/clean_Flights_2022.csv"
MOST_ROWS = 60
"""Of an answer; more are counted."""


class Tables:
    """The tables, read once and shared by all tasks; nothing changes them.

    Args:
        folder: of TravelPlanner's database.

    Raises:
        UsageError: a table isn't there. Flights may be missing: joiners inherit the base person's.
    """

    def __init__(self, folder: Path) -> None:
        missing = [name for name in FILES.values() if not (folder / name).is_file()]
        if missing:
            raise UsageError(f"{folder} has no {missing[0]}", hint=HINT)
        self._folder = folder

    @cached_property
    def restaurants(self) -> list[Row]:
        """Name, City, Cuisines, Average Cost, Aggregate Rating."""
        return self._read(FILES["restaurants"])

    @cached_property
    def accommodations(self) -> list[Row]:
        """NAME, room type, price, minimum nights, review rate number, house_rules, maximum occupancy, city."""
        return self._read(FILES["accommodations"])

    @cached_property
    def attractions(self) -> list[Row]:
        """Name, Address, Phone, Website, City and where it is."""
        return self._read(FILES["attractions"])

    @cached_property
    def distances(self) -> list[Row]:
        """origin, destination, duration, distance; cost is mostly empty."""
        return self._read(FILES["distances"])

    @cached_property
    def cities(self) -> dict[str, list[str]]:
        """State -> cities."""
        found: dict[str, list[str]] = {}
        for line in (self._folder / FILES["cities"]).read_text(encoding="utf-8").splitlines():
            city, _, state = line.partition("\t")
            if state:
                found.setdefault(state.strip(), []).append(city.strip())
        return found

    @cached_property
    def flights(self) -> list[Row] | None:
        """The flights, or None where the table isn't there."""
        return self._read(FLIGHTS) if (self._folder / FLIGHTS).is_file() else None

    def _read(self, name: str) -> list[Row]:
        with (self._folder / name).open(newline="", encoding="utf-8") as file:
            return [{k: v for k, v in row.items() if k} for row in csv.DictReader(file)]


class Handed:
    """The plan that was handed in last."""

    def __init__(self) -> None:
        self.plan: list[Day] = []


def tools_of(tables: Tables, handed: Handed) -> Toolbox:
    """The tools of one task."""

    @tool(name="RestaurantSearch", idempotent=True)
    def restaurant_search(city: str) -> str:
        """The restaurants of a city, with cuisines, average cost and rating."""
        return _listed(_of_city(tables.restaurants, "City", city))

    @tool(name="AccommodationSearch", idempotent=True)
    def accommodation_search(city: str) -> str:
        """The accommodations of a city, with room type, price, rules, occupancy and rating."""
        return _listed(_of_city(tables.accommodations, "city", city))

    @tool(name="AttractionSearch", idempotent=True)
    def attraction_search(city: str) -> str:
        """The attractions of a city."""
        found = _of_city(tables.attractions, "City", city)
        return _listed([{k: row[k] for k in ("Name", "Address", "City")} for row in found])

    @tool(name="DistanceMatrix", idempotent=True)
    def distance_matrix(origin: str, destination: str, mode: Literal["driving", "taxi"] = "driving") -> str:
        """How far it is between two cities, and how long it takes."""
        for row in tables.distances:
            if _same(row["origin"], origin) and _same(row["destination"], destination):
                return f"{mode}, from {row['origin']} to {row['destination']}: {row['duration']}, {row['distance']}"
        raise ToolError(f"there is no way known from {origin!r} to {destination!r}", kind="not_found")

    @tool(name="CitySearch", idempotent=True)
    def city_search(state: str) -> str:
        """The cities of a state."""
        found = next((cities for name, cities in tables.cities.items() if _same(name, state)), None)
        if found is None:
            raise ToolError(f"there is no state {state!r}", kind="not_found")
        return ", ".join(found)

    @tool(name="FlightSearch", idempotent=True)
    def flight_search(origin: str, destination: str, date: str) -> str:
        """The flights of a day, as YYYY-MM-DD."""
        if tables.flights is None:
            raise ToolError(
                "the table of flights isn't there; keep the flights of the base plan", kind="no_table"
            )
        found = [
            row
            for row in tables.flights
            if _same(row.get("OriginCityName", ""), origin)
            and _same(row.get("DestCityName", ""), destination)
            and row.get("FlightDate", "").strip() == date.strip()
        ]
        if not found:
            raise ToolError(
                f"there is no flight from {origin!r} to {destination!r} on {date}", kind="not_found"
            )
        return _listed(found)

    return Toolbox(
        [
            restaurant_search,
            accommodation_search,
            attraction_search,
            distance_matrix,
            city_search,
            flight_search,
            _submit(handed),
        ]
    )


def _submit(handed: Handed) -> Tool:
    day = {
        "type": "object",
        "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 31}}
        | {name: {"type": "string"} for name in Day.model_fields if name != "days"},
        "required": list(Day.model_fields),
        "additionalProperties": False,
    }
    schema = {
        "type": "object",
        "properties": {"daily_plans": {"type": "array", "items": day, "minItems": 1, "maxItems": 7}},
        "required": ["daily_plans"],
        "additionalProperties": False,
    }

    def submit(daily_plans: list[dict[str, object]]) -> str:
        handed.plan = [Day.model_validate(one) for one in daily_plans]
        return f"The plan of {len(handed.plan)} days is handed in."

    about = "Hand in the whole plan, every day of it, once it is complete. What isn't used is -. Attractions end with ;."
    return Tool.from_schema("submit_plan", about, schema, submit, idempotent=True)


def _of_city(rows: list[Row], column: str, city: str) -> list[Row]:
    found = [row for row in rows if _same(row[column], city)]
    if not found:
        raise ToolError(f"nothing is known of {city!r}", kind="not_found")
    return found


def _listed(rows: list[Row]) -> str:
    lines = ["; ".join(f"{k}: {v}" for k, v in row.items() if v) for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"and {len(rows) - MOST_ROWS} more")
    return "\n".join(lines)


def _same(a: str, b: str) -> bool:
    return a.strip().casefold() == b.strip().casefold()
