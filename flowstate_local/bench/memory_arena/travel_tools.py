"""The tools of a trip: six look-ups in the tables, a calculator, and the planning of a day."""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from flowstate_local.bench.memory_arena.plan import EMPTY, Day, Plan, plan_text
from flowstate_local.bench.memory_arena.tables import Record, Tables
from flowstate_local.calculator import evaluate
from flowstate_local.errors import ToolError
from flowstate_local.tools import Tool, Toolbox, tool

PLAN_DAY = "plan_day"
FIRST_PLAN = "first_plan"

_KM = re.compile(r"([\d,]+) km")
_COST_PER_KM = {"driving": 0.05, "taxi": 1.0}
"""Dollars, as TravelPlanner reckons; the table's own column is empty."""


class Desk:
    """Where the plan of the traveller who asks now is put together; one for each group.

    Args:
        n_days: how long the trip is.
    """

    def __init__(self, n_days: int) -> None:
        self.n_days = n_days
        self.name = ""
        """Who asks; "" while nothing is to be planned."""
        self._days: dict[int, Day] = {}

    def begin(self, name: str) -> None:
        """Somebody else asks: nothing is planned yet."""
        self.name = name
        self._days = {}

    def put(self, day: Day) -> str:
        """Plan a day, in place of an earlier plan for it; says what is still to be planned."""
        if not self.name:
            raise ToolError("nothing is to be planned in this request", kind="no_plan_wanted")
        if day.days > self.n_days:
            raise ToolError(
                f"the trip has days 1 to {self.n_days}, and no day {day.days}", kind="no_such_day"
            )
        self._days[day.days] = day
        left = [str(number) for number in range(1, self.n_days + 1) if number not in self._days]
        done = f"Day {day.days} of {self.name} is planned."
        if left:
            return f"{done} Days without a plan: {', '.join(left)}."
        # The whole plan in one result: what a memory keeps of it should be what the traveller has.
        return f"{done} Every day is planned:\n{plan_text(self.name, self.plan)}"

    @property
    def plan(self) -> Plan:
        """What was planned by now, in order."""
        return tuple(day for _, day in sorted(self._days.items()))


def travel_tools(desk: Desk, tables: Tables, first_plan: str = "") -> Toolbox:
    """The tools of one group.

    Args:
        desk: where plans are put.
        tables: what is looked up.
        first_plan: the settled plan, to be read by a tool while nothing is to be planned; "" for no such tool.
    """

    @tool(name="calculate", idempotent=True)
    def compute(expression: str) -> str:
        """Calculate or compare, such as 160 * 1.2 < 200."""
        return evaluate(expression)

    more = [_first_plan(desk, first_plan)] if first_plan else []
    return Toolbox([*_look_ups(tables), *_ways(tables), _plan_day(desk), *more, compute])


def _look_ups(tables: Tables) -> list[Tool]:
    @tool(name="RestaurantSearch", idempotent=True)
    def restaurants(city: str) -> str:
        """The restaurants of a city, with their cuisines, cost per person and rating."""
        columns = ("Name", "Cuisines", "Average Cost", "Aggregate Rating")
        return _listed("restaurants", city, tables.restaurants, columns)

    @tool(name="AccommodationSearch", idempotent=True)
    def accommodations(city: str) -> str:
        """The accommodations of a city, with room type, price per night, rating and rules."""
        columns = ("NAME", "room type", "price", "minimum nights", "review rate number", "house_rules")
        return _listed("accommodations", city, tables.accommodations, (*columns, "maximum occupancy"))

    @tool(name="AttractionSearch", idempotent=True)
    def attractions(city: str) -> str:
        """The attractions of a city."""
        return _listed("attractions", city, tables.attractions, ("Name", "Address"))

    @tool(name="CitySearch", idempotent=True)
    def cities(state: str) -> str:
        """The cities of a state."""
        found = tables.cities.get(state.strip().casefold())
        if not found:
            raise ToolError(f"there is no state {state!r}", kind="not_found")
        return ", ".join(found)

    return [restaurants, accommodations, attractions, cities]


def _ways(tables: Tables) -> list[Tool]:
    @tool(name="DistanceMatrix", idempotent=True)
    def distance(origin: str, destination: str, mode: Literal["driving", "taxi"]) -> str:
        """Duration, distance and cost of the way between two cities."""
        way = tables.distances.get((origin.strip().casefold(), destination.strip().casefold()))
        km = _KM.match(way["distance"]) if way else None
        # A way of a day or more is none, in TravelPlanner.
        if way is None or km is None or "day" in way["duration"]:
            return f"{mode}, from {origin} to {destination}: no valid information."
        cost = int(int(km[1].replace(",", "")) * _COST_PER_KM[mode])
        return (
            f"{mode}, from {origin} to {destination}, duration: {way['duration']}, "
            f"distance: {way['distance']}, cost: {cost}"
        )

    @tool(name="FlightSearch", idempotent=True)
    def flights(
        origin: str, destination: str, date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
    ) -> str:
        """The flights between two cities on a day.

        Args:
            origin: City of departure.
            destination: City of arrival.
            date: As 2022-03-16.
        """
        if tables.flights is None:
            raise ToolError("the flights table isn't installed here", kind="unavailable")
        found = tables.flights_of(origin.strip(), destination.strip(), date)
        if not found:
            return f"There is no flight from {origin} to {destination} on {date}."
        columns = ("Flight Number", "Price", "DepTime", "ArrTime", "ActualElapsedTime", "Distance")
        return _table(found, columns)

    return [distance, flights]


def _plan_day(desk: Desk) -> Tool:
    @tool(name=PLAN_DAY, idempotent=True)
    def plan_day(
        day: Annotated[int, Field(ge=1, le=31)],
        transportation: str,
        breakfast: str,
        attraction: str,
        lunch: str,
        dinner: str,
        accommodation: str,
    ) -> str:
        """Plan one day of the traveller who asks: all of its slots, "-" for an empty one. Again, it replaces the plan."""
        return desk.put(
            Day(
                days=day,
                transportation=transportation,
                breakfast=breakfast,
                attraction=attraction,
                lunch=lunch,
                dinner=dinner,
                accommodation=accommodation,
            )
        )

    return plan_day


def _first_plan(desk: Desk, text: str) -> Tool:
    @tool(name=FIRST_PLAN, idempotent=True)
    def first_plan() -> str:
        """The settled plan of the first traveller. It is shown in the first request only."""
        if desk.name:
            raise ToolError("the plan was shown in the first request", kind="shown_before")
        return text

    return first_plan


def _listed(what: str, city: str, table: dict[str, list[Record]], columns: tuple[str, ...]) -> str:
    found = table.get(city.strip().casefold())
    if not found:
        raise ToolError(f"there are no {what} in {city!r}; a city goes without its state", kind="not_found")
    return _table(found, columns)


def _table(rows: Iterable[Record], columns: tuple[str, ...]) -> str:
    lines = [" | ".join(columns)]
    lines += [" | ".join(row[column] or EMPTY for column in columns) for row in rows]
    return "\n".join(lines)
