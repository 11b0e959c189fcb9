"""The tables of TravelPlanner, from which the travel tools read; the user fetches them."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from flowstate_local.errors import UsageError

DOWNLOAD = (
    "The tables come from TravelPlanner (github.com/OSU-NLP-Group/TravelPlanner, its README links the database); "
    "name the folder that holds restaurants/, accommodations/, attractions/, googleDistanceMatrix/, background/."
)
Record = dict[str, str]
"""Column -> cell, without blanks around it."""

_FLIGHTS = "flights/clean_Flights_2022.csv"
_FLIGHT_COLUMNS = (
    "Flight Number",
    "Price",
    "DepTime",
    "ArrTime",
    "ActualElapsedTime",
    "FlightDate",
    "OriginCityName",
    "DestCityName",
    "Distance",
)


@dataclass(frozen=True)
class Tables:
    """All of them, keyed by what they're looked up by, in lower case. Read once, shared by all tasks."""

    restaurants: dict[str, list[Record]] = field(repr=False)
    accommodations: dict[str, list[Record]] = field(repr=False)
    attractions: dict[str, list[Record]] = field(repr=False)
    distances: dict[tuple[str, str], Record] = field(repr=False)
    cities: dict[str, list[str]] = field(repr=False)
    """State -> its cities."""
    flights: Path | None
    """The file, too large to be held; None where it's absent."""

    @classmethod
    def open(cls, folder: Path) -> "Tables":
        """Read the tables in a folder. Raises UsageError: one is absent or lacks a column."""
        folder = Path(folder)
        flights = folder / _FLIGHTS
        places = [line.split("\t") for line in _lines(folder / "background/citySet_with_states.txt")]
        cities: dict[str, list[str]] = {}
        for city, *state in places:
            cities.setdefault("".join(state).strip().casefold(), []).append(city.strip())
        return cls(
            restaurants=_by_city(
                folder / "restaurants/clean_restaurant_2022.csv",
                ("Name", "City", "Cuisines", "Average Cost", "Aggregate Rating"),
                "City",
            ),
            accommodations=_by_city(
                folder / "accommodations/clean_accommodations_2022.csv",
                (
                    "NAME",
                    "room type",
                    "price",
                    "minimum nights",
                    "review rate number",
                    "house_rules",
                    "maximum occupancy",
                    "city",
                ),
                "city",
            ),
            attractions=_by_city(folder / "attractions/attractions.csv", ("Name", "Address", "City"), "City"),
            distances={
                (row["origin"].casefold(), row["destination"].casefold()): row
                for row in _records(
                    folder / "googleDistanceMatrix/distance.csv",
                    ("origin", "destination", "duration", "distance"),
                )
            },
            cities=cities,
            flights=flights if flights.is_file() else None,
        )

    def flights_of(self, origin: str, destination: str, date: str) -> list[Record]:
        """Flights on a day; [] if there are none, or no table. Reads the whole file, as it is too large to be held."""
        if self.flights is None:
            return []
        wanted = (origin.casefold(), destination.casefold(), date)
        return [
            row
            for row in _records(self.flights, _FLIGHT_COLUMNS, containing=date)
            if (row["OriginCityName"].casefold(), row["DestCityName"].casefold(), row["FlightDate"]) == wanted
        ]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} can't be read: {error}", hint=DOWNLOAD) from error


def _records(path: Path, columns: tuple[str, ...], *, containing: str = "") -> Iterator[Record]:
    """The rows of a CSV file; only lines with `containing` in them are parsed."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            header = file.readline()
            names = next(csv.reader([header]), [])
            if missing := [column for column in columns if column not in names]:
                raise UsageError(f"{path} has no column {missing[0]!r}", hint=DOWNLOAD)
            lines = (line for line in file if containing in line) if containing else file
            for row in csv.DictReader(lines, fieldnames=names):
                yield {column: (row[column] or "").strip() for column in columns}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} can't be read: {error}", hint=DOWNLOAD) from error


def _by_city(path: Path, columns: tuple[str, ...], city: str) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for row in _records(path, columns):
        found.setdefault(row[city].casefold(), []).append(row)
    return found
