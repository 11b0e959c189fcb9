"""MemoryArena: right plans pass, copies don't, and nothing that is broken goes unnoticed.

The rows of the benchmark and TravelPlanner's tables aren't part of this repository: what needs them is skipped where
the folder isn't there. Everything else runs on made-up rows.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstate_local.baselines.base import Answer, Budget, Method, Setting
from flowstate_local.baselines.flowstate import FlowState
from flowstate_local.baselines.full_context import FullContext
from flowstate_local.baselines.react import dump_react
from flowstate_local.bench.memory_arena import load
from flowstate_local.bench.memory_arena.catalogue import Catalogue, Product, product_of
from flowstate_local.bench.memory_arena.ceiling import gold_formal, gold_shopping, gold_travel
from flowstate_local.bench.memory_arena.floor import copy_base, do_nothing
from flowstate_local.bench.memory_arena.formal import Formal, requests_of
from flowstate_local.bench.memory_arena.judge import ServerJudge, read_verdict
from flowstate_local.bench.memory_arena.metrics import depth_curve, depth_figures, nauc
from flowstate_local.bench.memory_arena.plan import SLOTS, Day, parse_plan, plan_text
from flowstate_local.bench.memory_arena.reward import has_attribute, reward, type_factor
from flowstate_local.bench.memory_arena.rows import TravelRow
from flowstate_local.bench.memory_arena.shopping import Shopping
from flowstate_local.bench.memory_arena.submission import submission
from flowstate_local.bench.memory_arena.tables import Tables
from flowstate_local.bench.memory_arena.travel import Travel, base_request
from flowstate_local.bench.memory_arena.travel_score import THRESHOLD, score_person, sim
from flowstate_local.bench.memory_arena.travel_tools import Desk, travel_tools
from flowstate_local.bench.suite import Figure, Seat
from flowstate_local.completion import Sampling
from flowstate_local.errors import UsageError
from flowstate_local.protocol import StepOutput, ToolCall
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox

pytestmark = pytest.mark.anyio

DATA = Path(os.environ.get("MEMORY_ARENA_DATA", "not there"))
"""Holds `samples_transcribed/` and `travel_planner_database/`."""
SAMPLES, DATABASE = DATA / "samples_transcribed", DATA / "travel_planner_database"
needs_data = pytest.mark.skipif(not DATABASE.is_dir(), reason="MEMORY_ARENA_DATA isn't set")


# --- made-up data -------------------------------------------------------------------------------------------------


def day(number: int, **slots: Any) -> dict[str, Any]:
    return {"days": number, "current_city": "Lund", **dict.fromkeys(SLOTS, "-"), **slots}


BASE = [day(1, dinner="Old Mill, Lund"), day(2, lunch="Harbour Inn, Lund", accommodation="Quiet Loft, Lund")]
ANN = [day(1, dinner="Blue Door, Lund"), BASE[1]]
BOB = [BASE[0], day(2, lunch="Zorba, Lund", accommodation="Quiet Loft, Lund")]
TRAVEL: dict[str, Any] = {
    "id": 7,
    "base_person": {"name": "Eve", "query": "I am Eve.\nTwo days in Lund.", "daily_plans": BASE},
    "questions": [
        "I am Ann.\nI'd like dinner at the Blue Door.",
        "I am Bob.\nLunch on day 2 at Zorba.",
        "I am Cy.\nI stay with Ann.",
    ],
    "answers": [ANN, BOB, BASE],
}
FORMAL: dict[str, Any] = {
    "id": 0,
    "paper_name": "0000.0001",
    "questions": ["What is a?", "What is 2a?"],
    "answers": ["a = 3", "2a = 6"],
    "backgrounds": ["Let a be three.", ""],
}
SHOPPING: dict[str, Any] = {
    "id": 0,
    "category": "baking_item_0",
    "questions": ["Product 1:\nA cake mix.", "Product 2:\nA frosting."],
    "answers": [
        {"target_asin": "B1", "attributes": ["vanilla", "gluten-free"]},
        {"target_asin": "B2", "attributes": ["white"]},
    ],
}
PRODUCTS: list[dict[str, Any]] = [
    {
        "asin": "B1",
        "name": "Vanilla Cake Mix, gluten free",
        "product_category": "Grocery › Baking › Mixes",
        "pricing": "$4.50",
        "average_rating": 4.5,
        "small_description": ["ready in an hour"],
    },
    {
        "asin": "B3",
        "name": "Vanilla Cake Mix, gluten-free, large",
        "product_category": "Grocery › Baking › Mixes",
        "pricing": "$5.00$9.00",
    },
    {
        "asin": "B2",
        "name": "White Frosting",
        "product_category": "Grocery › Baking › Frosting",
        "pricing": 3,
    },
    {"asin": "B4", "name": "Garden hose", "product_category": "Garden"},
]


def write(folder: Path, config: str, *rows: Any) -> Path:
    path = folder / config / "data.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Tables of one city, and no flights."""
    files = {
        "restaurants/clean_restaurant_2022.csv": (
            ",Name,City,Cuisines,Average Cost,Aggregate Rating\n"
            '0,Blue Door,Lund,"Tea, French",32,4.5\n1,Zorba,Lund,Greek,20,\n'
        ),
        "accommodations/clean_accommodations_2022.csv": (
            ",NAME,room type,price,minimum nights,review rate number,house_rules,maximum occupancy,city\n"
            "0,Quiet Loft,Private room,131.0,1.0,2.0,No smoking,1,Lund\n"
        ),
        "attractions/attractions.csv": (
            "Name,Latitude,Longitude,Address,Phone,Website,City\nCathedral,1,2,Main St,0,x,Lund\n"
        ),
        "googleDistanceMatrix/distance.csv": (
            'origin,destination,cost,duration,distance\nLund,Kiel,,5 hours,"1,144 km"\n'
            "Lund,Oslo,,1 day 2 hours,600 km\nLund,Ghent,,,\n"
        ),
        "background/citySet_with_states.txt": "Lund\tSkane\nMalmo\tSkane\n",
    }
    for name, text in files.items():
        path = tmp_path / "database" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "database"


@pytest.fixture
def travel(tmp_path: Path, database: Path) -> Travel:
    return Travel(write(tmp_path / "data", "group_travel_planner", TRAVEL), database)


def catalogue() -> Catalogue:
    return Catalogue([product for record in PRODUCTS if (product := product_of(record))])


def shopping(tmp_path: Path, **options: Any) -> Shopping:
    return Shopping(write(tmp_path / "data", "bundled_shopping", SHOPPING), catalogue(), **options)


def judge_that(says: Callable[[dict[str, Any]], httpx.Response | str], **options: Any) -> ServerJudge:
    """A judge whose server is a function."""

    def answer(request: httpx.Request) -> httpx.Response:
        said = says(json.loads(request.content))
        if isinstance(said, httpx.Response):
            return said
        message = {"choices": [{"message": {"content": said}}]}
        return httpx.Response(200, json={**message, "usage": {"prompt_tokens": 50, "completion_tokens": 1}})

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return ServerJudge("http://judge/v1", "judge", http=http, **options)


class Scripted:
    """A method that replies from a list, or runs a function with its tools."""

    def __init__(self, toolbox: Toolbox, replies: Iterator[Any], asked: list[str]) -> None:
        self.toolbox, self.replies, self.asked = toolbox, replies, asked

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        self.asked.append(text)
        reply = next(self.replies)
        if isinstance(reply, ToolCall):
            result = await self.toolbox.run(reply)
            self.asked.append(result.raw.decode())
            return Answer("replied", "Done.", ())
        return reply if isinstance(reply, Answer) else Answer("replied", reply, ())

    async def close(self) -> None:
        self.asked.append("closed")


def seat_of(replies: list[Any], asked: list[str] | None = None) -> Seat:
    said = [] if asked is None else asked

    def sit(toolbox: Toolbox, instructions: str) -> Method:
        return Scripted(toolbox, iter(replies), said)

    return sit


def named(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


# --- the sample rows, as published ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> Travel:
    return Travel(SAMPLES, DATABASE)


@needs_data
@pytest.mark.parametrize(
    ("seat", "ps", "sps", "sr"),
    [("gold", 1.0, 1.0, 1.0), ("copy", 1 / 8, 0.0, 0.0), ("nothing", 0.0, 0.0, 0.0)],
)
async def test_the_sample_group_gold_8_of_8_copy_1_of_8(
    sample: Travel, seat: str, ps: float, sps: float, sr: float
) -> None:
    seats = {"gold": gold_travel(sample.rows.values()), "copy": copy_base, "nothing": do_nothing}
    first = await sample.play("1", seats[seat], seed=0)
    again = await sample.play("1", seats[seat], seed=1)
    assert first == again
    assert (first.scores["PS"], first.scores["sPS"], first.scores["SR"]) == (ps, sps, sr)
    figures = named(sample.figures({"1": [first.scores]}))
    assert (figures["PS"].value, figures["PS"].n) == (ps, 8)
    assert (figures["PS of a copy"].value, figures["sPS of a copy"].value) == (1 / 8, 0.0)


@needs_data
async def test_what_eric_asks_for_fits_one_restaurant_each_in_the_tools_own_words(sample: Travel) -> None:
    toolbox = travel_tools(Desk(3), Tables.open(DATABASE))
    listed = await toolbox.run(ToolCall(name="RestaurantSearch", arguments={"city": "Rockford"}))
    header, *lines = listed.raw.decode().splitlines()
    assert header == "Name | Cuisines | Average Cost | Aggregate Rating"
    rows = [line.split(" | ") for line in lines]
    assert len(rows) == 27
    wishes: dict[tuple[int, str], tuple[set[str], float, float, float]] = {
        (2, "breakfast"): ({"Desserts", "Bakery"}, 67.6, 80.4, 0.0),
        (2, "dinner"): ({"Mexican"}, 70.3, 81.7, 0.0),
        (3, "lunch"): (set(), 67.8, 76.2, 4.6),
        (3, "dinner"): ({"Desserts", "French"}, 22.3, 41.7, 0.0),
    }
    gold = {one.days: one for one in sample.rows["1"].answers[0]}
    for (number, slot), (cuisines, low, high, rating) in wishes.items():
        fitting = [
            name
            for name, served, cost, rated in rows
            if cuisines <= set(served.split(", ")) and low <= float(cost) <= high and float(rated) >= rating
        ]
        assert [f"{name}, Rockford" for name in fitting] == [gold[number].slot(slot)]


@needs_data
async def test_an_agent_under_the_grammar_can_plan_by_tool_and_by_text(sample: Travel) -> None:
    row = sample.rows["1"]

    def script() -> Iterator[str]:
        yield dump_react("I remember.", message="Noted.")
        yield dump_react("Look.", [("RestaurantSearch", {"city": "Rockford"})])
        for one in row.answers[0]:
            slots = {slot: one.slot(slot) for slot in SLOTS}
            yield dump_react("Plan.", [("plan_day", {"day": one.days, **slots})])
        yield dump_react("Done.", message="Eric is planned.")
        for name, plan in zip(row.names[1:], row.answers[1:], strict=True):
            yield dump_react("As text.", message=plan_text(name, plan))

    budget = Budget(sampling=Sampling(max_tokens=20_000))

    def sit(toolbox: Toolbox, instructions: str) -> Method:
        engine = ScriptedEngine(script(), context_window=200_000)
        return FullContext(Setting(engine, toolbox, budget, instructions))

    played = await sample.play("1", sit, seed=0)
    assert played.scores["PS"] == 1.0
    assert len(played.answers) == 9
    assert sum(len(answer.usage) for answer in played.answers) == 13


@needs_data
async def test_flowstate_takes_the_same_seat_and_keeps_the_plans_as_raw_results(sample: Travel) -> None:
    row = sample.rows["1"]

    def script() -> Iterator[StepOutput]:
        yield step(calls=[("first_plan", {})])
        yield step(delta=[noted("t1", "The plan of the first traveller")], message="Noted.")
        n_results = 1
        for name, plan in zip(row.names, row.answers, strict=True):
            for one in plan:
                fresh = (
                    [noted(f"t{n_results}", f"{name}, {'first' if one.days == 2 else 'next'} day")]
                    if one.days > 1
                    else []
                )
                slots = {slot: one.slot(slot) for slot in SLOTS}
                yield step(delta=fresh, calls=[("plan_day", {"day": one.days, **slots})])
                n_results += 1
            yield step(delta=[noted(f"t{n_results}", f"The plan of {name}")], message="Planned.")

    numbers = itertools.count(1)

    def noted(evidence: str, summary: str) -> dict[str, Any]:
        node_id = f"n{next(numbers)}"
        return {"type": "knowledge", "id": node_id, "refs": [], "evidence": [evidence], "summary": summary}

    engine = ScriptedEngine(script(), context_window=200_000)

    def sit(toolbox: Toolbox, instructions: str) -> Method:
        budget = Budget(sampling=Sampling(max_tokens=20_000))
        return FlowState(Setting(engine, toolbox, budget, instructions), MemoryStore())

    suite = Travel(SAMPLES, DATABASE, plan_by_tool=True)
    played = await suite.play("1", sit, seed=0)
    assert played.scores["PS"] == 1.0
    assert [answer.outcome for answer in played.answers] == ["replied"] * 9
    assert "=== Jennifer's Plan ===" not in engine.prompts[0]
    assert "=== Jennifer's Plan ===" in engine.prompts[1]
    assert "=== Eric's Plan ===" in engine.prompts[5]


@needs_data
async def test_the_sample_papers_and_bundles_are_read_and_solved_by_who_knows(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "formal_reasoning_math_ABRIDGED", tmp_path / "formal_reasoning_math")
    right = judge_that(lambda body: "Yes." if _same(body) else "No.")
    suite = Formal(tmp_path, "math", judge=right)
    played = await suite.play("0", gold_formal(suite.rows.values()), seed=0)
    assert (played.scores["PS"], played.scores["SR"], len(played.answers)) == (1.0, 1.0, 5)
    bundles = load.shopping_rows(SAMPLES).rows
    shop = Catalogue(
        Product(wanted.target_asin, f"{wanted.attributes[0]} {i}", "Grocery", 1.0, "5", "", ())
        for i, wanted in enumerate(bundles["0"].answers)
    )
    bought = await Shopping(SAMPLES, shop).play("0", gold_shopping(bundles.values()), seed=0)
    assert (bought.scores["ps_exact"], bought.scores["SR"], len(bought.answers)) == (1.0, 1.0, 6)


def _same(body: dict[str, Any]) -> bool:
    text = body["messages"][0]["content"]
    reference, rest = text.split("Reference answer\n")[1].split("\n\nCandidate answer\n")
    return str(rest.split("\n\nIs the candidate")[0].strip()) == str(reference.strip())


# --- loading ------------------------------------------------------------------------------------------------------


def test_a_folder_without_the_file_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither") as caught:
        load.travel_rows(tmp_path)
    assert "hf download ZexueHe/memoryarena" in caught.value.hint


def test_both_layouts_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, "group_travel_planner", TRAVEL)
    first = load.travel_rows(folder)
    (folder / "group_travel_planner" / "data.jsonl").rename(folder / "group_travel_planner.jsonl")
    (folder / "group_travel_planner").rmdir()
    assert load.travel_rows(folder) == first
    assert first.rows["7"].names == ("Ann", "Bob", "Cy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"questions": "I am Ann."}, "row 7: field questions"),
        ({"questions": []}, "row 7: field questions"),
        ({"answers": [ANN]}, "row 7: .*answers has 1 entries for 3 questions"),
        ({"answers": [ANN, BOB, [{"days": "one"}]]}, r"row 7: field answers\.2\.0\.days"),
        ({"answers": [ANN, BOB, [day(0)]]}, r"row 7: field answers\.2\.0\.days"),
        ({"answers": [ANN, BOB, [day(1, lunch=None)]]}, r"row 7: field answers\.2\.0\.lunch"),
        ({"base_person": None}, "row 7: field base_person"),
        ({"questions": ["I am Ann.", "Hello.", "I am Cy."]}, "row 7: .*questions.1 doesn't begin"),
        ({"id": "x"}, "row 'x': field id"),
    ],
)
def test_a_broken_row_is_refused_with_its_id_and_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path, "group_travel_planner", {**TRAVEL, "id": 6}, {**TRAVEL, **change})
    with pytest.raises(UsageError, match=message) as caught:
        load.travel_rows(folder)
    assert "data.jsonl:2:" in str(caught.value)


@pytest.mark.parametrize("text", ["", "\n\n", "{", "[1]", "\xff"])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "group_travel_planner.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=r"group_travel_planner\.jsonl"):
        load.travel_rows(tmp_path)


def test_two_rows_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="row 7: there are two"):
        load.travel_rows(write(tmp_path, "group_travel_planner", TRAVEL, TRAVEL))


def test_backgrounds_and_attributes_are_checked_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="row 0: .*backgrounds has 1"):
        load.formal_rows(write(tmp_path, "formal_reasoning_phys", {**FORMAL, "backgrounds": [""]}), "phys")
    broken = {**SHOPPING, "answers": [{"target_asin": "B1"}, SHOPPING["answers"][1]]}
    with pytest.raises(UsageError, match=r"row 0: field answers\.0\.attributes"):
        load.shopping_rows(write(tmp_path, "bundled_shopping", broken))


@pytest.mark.parametrize("published_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_the_hash_is_checked_in_both_forms_of_line_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published_end: bytes, end: bytes
) -> None:
    lines = [json.dumps(FORMAL).encode(), json.dumps({**FORMAL, "id": 1}).encode()]
    sha256 = hashlib.sha256(b"".join(line + published_end for line in lines)).hexdigest()
    monkeypatch.setitem(load.PUBLISHED, "formal_reasoning_math", load.Published(2, 4, sha256))
    path = tmp_path / "formal_reasoning_math.jsonl"
    path.write_bytes(b"".join(line + end for line in lines))
    assert load.formal_rows(tmp_path, "math").remarks == ()


def test_another_hash_and_other_counts_are_remarked_upon(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    remarks = load.travel_rows(write(tmp_path, "group_travel_planner", TRAVEL)).remarks
    assert len(remarks) == 2
    assert "1 tasks with 3 subtasks; published: 270 with 1869" in remarks[0]
    assert "SHA-256" in remarks[1]
    assert len(caplog.records) == 2


# --- likeness and plans -------------------------------------------------------------------------------------------

TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs")), max_size=40)
VALUES = st.text("abcXYZ äé☆:;,.'-&()#0129", min_size=1, max_size=40).map(str.strip).filter(bool)


@given(TEXTS, TEXTS)
def test_likeness_is_a_share(a: str, b: str) -> None:
    assert 0.0 <= sim(a, b) <= 1.0
    assert (not a.strip() or not b.strip()) <= (sim(a, b) == 0.0)


@given(TEXTS.filter(str.strip), TEXTS)
def test_what_is_equal_or_a_beginning_passes(a: str, rest: str) -> None:
    assert sim(a, a) == 1.0
    longer = a.strip().lower() + rest.lower()
    if len(longer.strip()) >= len(a.strip().lower()):
        assert sim(a.strip().lower(), longer) == 1.0


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        ("-", "-", 1.0),
        (" - ", "-", 1.0),
        ("", "x", 0.0),
        ("", "", 0.0),
        ("-", "Old Mill, Lund", 0.0),
        ("OLD MILL, lund ", "Old Mill, Lund", 1.0),
        ("o", "Old Mill, Lund", 1.0),
        ("Old Mill", "Old Mill, Lund", 1.0),
    ],
)
def test_likeness_of_what_is_known(a: str, b: str, value: float) -> None:
    assert sim(a, b) == value


def test_a_wrong_flight_on_the_same_route_passes_as_published() -> None:
    flight = "Flight Number: F3573659, from A to B, Departure Time: 15:40, Arrival Time: 17:04"
    assert sim(flight.replace("F3573659", "F3570011"), flight) >= THRESHOLD


@given(
    st.lists(
        st.fixed_dictionaries({slot: VALUES for slot in ("current_city", *SLOTS)}), min_size=1, max_size=7
    ),
    st.sampled_from(["Ann", "Zoë", "J R"]),
)
def test_a_plan_survives_its_text_form(days: list[dict[str, str]], name: str) -> None:
    plan = tuple(Day(days=i, **slots) for i, slots in enumerate(days, start=1))
    assert parse_plan(plan_text(name, plan), name) == plan
    both = f"Here you are.\n{plan_text('Somebody', (Day(days=1),))}\n\n{plan_text(name, plan)}"
    assert parse_plan(both, name) == plan


@given(st.text(max_size=300))
def test_no_reply_breaks_the_parser(text: str) -> None:
    assert all(one.days >= 1 for one in parse_plan(text, "Ann"))
    parse_plan(f"=== Ann's Plan ===\nDay 1:\n{text}", "Ann")


def test_a_repeated_name_overwrites_and_other_names_do_not_count() -> None:
    text = (
        "=== Ann's Plan ===\nDay 1:\nDinner: A\nLunch: L\n"
        "=== Bob's Plan ===\nDay 1:\nDinner: B\n"
        "=== ANN’s plan ===\nDay 1:\nDinner: C\n"
    )
    assert parse_plan(text, "Ann") == (Day(days=1, dinner="C"),)
    assert parse_plan(text, "Bob") == (Day(days=1, dinner="B"),)
    assert parse_plan(text, "Cy") == ()


@pytest.mark.parametrize(
    "text",
    [
        "Day 1:\nDinner: Blue Door, Lund\nCurrent City: Lund",
        "**Day 1:**\n- **Dinner:** Blue Door, Lund\n- **Current City:** Lund",
        "# Ann\n## Day 1\n* dinner: Blue Door, Lund\n* Current city: Lund\nweather: fine",
    ],
)
def test_the_forms_that_models_write(text: str) -> None:
    assert parse_plan(text, "Ann") == (Day(days=1, current_city="Lund", dinner="Blue Door, Lund"),)


def test_missing_slots_and_unknown_days() -> None:
    gold, base = TravelRow.model_validate_json(json.dumps(TRAVEL)).answers[0], ()
    assert score_person((*gold, Day(days=9, lunch="x")), gold, base).passed
    assert not score_person(gold[:1], gold, base).passed
    assert score_person((), gold, gold).constraints == ()
    assert score_person((), gold, gold).met is None


# --- travel -------------------------------------------------------------------------------------------------------


async def test_travel_gold_copy_and_nothing(travel: Travel) -> None:
    gold = await travel.play("7", gold_travel(travel.rows.values()), seed=0)
    copy = await travel.play("7", copy_base, seed=0)
    nothing = await travel.play("7", do_nothing, seed=0)
    assert gold.scores == {"SR": 1.0, "PS": 1.0, "sPS": 1.0, "SR@1": 1.0, "SR@2": 1.0, "SR@3": 1.0}
    assert copy.scores == {"SR": 0.0, "PS": 1 / 3, "sPS": 0.0, "SR@1": 0.0, "SR@2": 0.0, "SR@3": 1.0}
    assert set(nothing.scores.values()) == {0.0}
    figures = named(travel.figures({"7": [gold.scores, copy.scores, None]}))
    assert (figures["PS"].value, figures["PS"].n) == (4 / 9, 9)
    assert figures["sPS"].value == pytest.approx(1 / 3)
    assert (figures["SR@3"].value, figures["nAUC"].value) == (2 / 3, None)
    assert "needs 5 tasks" in figures["nAUC"].note


@pytest.mark.parametrize("strict", [True, False])
async def test_absent_travellers_count_only_if_strict(tmp_path: Path, database: Path, strict: bool) -> None:
    suite = Travel(write(tmp_path / "data", "group_travel_planner", TRAVEL), database, strict_missing=strict)
    plans = [TravelRow.model_validate_json(json.dumps(TRAVEL)).answers[i] for i in (0, 2)]
    replies = ["", plan_text("Ann", plans[0]), "", plan_text("Cy", plans[1])]
    played = await suite.play("7", seat_of(replies), seed=0)
    assert played.scores["PS"] == (2 / 3 if strict else 1.0)
    assert played.scores["SR"] == (0.0 if strict else 1.0)
    assert played.scores["sPS"] == (0.5 if strict else 1.0)
    assert played.scores["SR@2"] == (0.0 if strict else None)
    n = {True: 3, False: 2}[strict]
    assert named(suite.figures({"7": [played.scores]}))["PS"].n == n
    [line] = submission([played.detail], strict_missing=strict).splitlines()
    assert [one["person_idx"] for one in json.loads(line)["persons"]] == ([1, 2, 3] if strict else [1, 3])
    assert json.loads(line)["persons"][0]["plan"][0] == day(1, dinner="Blue Door, Lund")


async def test_a_method_sees_questions_and_the_settled_plan_and_no_truth(travel: Travel) -> None:
    asked: list[str] = []
    await travel.play("7", seat_of([""] * 4, asked), seed=0)
    row = travel.rows["7"]
    assert asked == [base_request(row), *row.questions, "closed"]
    assert parse_plan(asked[0], "Eve") == row.base
    assert "Zorba" not in asked[0]


async def test_the_first_plan_can_be_read_with_a_tool_and_only_then(tmp_path: Path, database: Path) -> None:
    suite = Travel(write(tmp_path / "data", "group_travel_planner", TRAVEL), database, plan_by_tool=True)
    asked: list[str] = []
    call = ToolCall(name="first_plan", arguments={})
    await suite.play("7", seat_of([call, call, "", ""], asked), seed=0)
    assert "Old Mill" not in asked[0]
    assert parse_plan(asked[1], "Eve") == suite.rows["7"].base
    assert asked[3] == "the plan was shown in the first request"
    copy = await suite.play("7", copy_base, seed=0)
    assert copy.scores["PS"] == 1 / 3


async def test_the_method_is_closed_when_it_fails(travel: Travel) -> None:
    asked: list[str] = []
    with pytest.raises(RuntimeError):
        await travel.play("7", seat_of([], asked), seed=0)
    assert asked[-1] == "closed"


def test_unknown_tasks_are_named(travel: Travel) -> None:
    with pytest.raises(UsageError, match="'99'"):
        travel.figures({"99": [None]})


SLOT = dict.fromkeys(SLOTS, "-")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("RestaurantSearch", {"city": " lund"}, "Blue Door | Tea, French | 32 | 4.5\nZorba | Greek | 20 | -"),
        ("RestaurantSearch", {"city": "Paris"}, "there are no restaurants in 'Paris'"),
        ("AccommodationSearch", {"city": "Lund"}, "Quiet Loft | Private room | 131.0"),
        ("AttractionSearch", {"city": "Lund"}, "Cathedral | Main St"),
        ("CitySearch", {"state": "Skane"}, "Lund, Malmo"),
        ("CitySearch", {"state": ""}, "there is no state ''"),
        ("DistanceMatrix", {"origin": "Lund", "destination": "Kiel", "mode": "driving"}, "cost: 57"),
        ("DistanceMatrix", {"origin": "Lund", "destination": "Kiel", "mode": "taxi"}, "cost: 1144"),
        ("DistanceMatrix", {"origin": "Lund", "destination": "Oslo", "mode": "taxi"}, "no valid information"),
        (
            "DistanceMatrix",
            {"origin": "Lund", "destination": "Ghent", "mode": "taxi"},
            "no valid information",
        ),
        ("DistanceMatrix", {"origin": "Lund", "destination": "Bonn", "mode": "taxi"}, "no valid information"),
        ("DistanceMatrix", {"origin": "Lund", "destination": "Bonn", "mode": "bus"}, "mode"),
        ("FlightSearch", {"origin": "Lund", "destination": "Kiel", "date": "2022-03-16"}, "isn't installed"),
        ("FlightSearch", {"origin": "Lund", "destination": "Kiel", "date": "soon"}, "date"),
        ("plan_day", {"day": 3, **SLOT}, "days 1 to 2, and no day 3"),
        ("plan_day", {"day": 1, **SLOT}, "Day 1 of Ann is planned. Days without a plan: 2."),
        ("plan_day", {"day": 1}, "transportation"),
    ],
)
async def test_what_the_travel_tools_say(
    database: Path, name: str, arguments: dict[str, Any], said: str
) -> None:
    desk = Desk(2)
    desk.begin("Ann")
    result = await travel_tools(desk, Tables.open(database)).run(ToolCall(name=name, arguments=arguments))
    assert said in result.raw.decode()


async def test_flights_are_found_where_the_table_is(database: Path) -> None:
    path = database / "flights" / "clean_Flights_2022.csv"
    path.parent.mkdir()
    path.write_text(
        "Flight Number,Price,DepTime,ArrTime,ActualElapsedTime,FlightDate,OriginCityName,DestCityName,Distance\n"
        "F1,100,10:00,11:00,1 hours,2022-03-16,Lund,Kiel,200\nF2,90,12:00,13:00,1 hours,2022-03-17,Lund,Kiel,200\n",
        encoding="utf-8",
    )
    toolbox = travel_tools(Desk(2), Tables.open(database))
    call = {"origin": "lund", "destination": "Kiel", "date": "2022-03-17"}
    found = await toolbox.run(ToolCall(name="FlightSearch", arguments=call))
    assert "F2 | 90" in found.raw.decode()
    assert "F1" not in found.raw.decode()
    none = await toolbox.run(ToolCall(name="FlightSearch", arguments={**call, "date": "2022-01-01"}))
    assert "no flight" in none.raw.decode()


async def test_nothing_is_planned_in_the_first_request(travel: Travel) -> None:
    asked: list[str] = []
    call = ToolCall(name="plan_day", arguments={"day": 1, **SLOT})
    await travel.play("7", seat_of([call, "", "", ""], asked), seed=0)
    assert asked[1] == "nothing is to be planned in this request"


@pytest.mark.parametrize("broken", ["absent", "column", "bytes"])
def test_broken_tables_are_named(database: Path, broken: str) -> None:
    path = database / "restaurants" / "clean_restaurant_2022.csv"
    if broken == "absent":
        path.unlink()
    else:
        path.write_bytes(b"Name,City\n" if broken == "column" else b"\xff\xfe")
    with pytest.raises(UsageError, match="clean_restaurant_2022") as caught:
        Tables.open(database)
    assert "OSU-NLP" in caught.value.hint


# --- formal reasoning ---------------------------------------------------------------------------------------------


def formal(tmp_path: Path, **options: Any) -> Formal:
    return Formal(write(tmp_path, "formal_reasoning_math", FORMAL), "math", **options)


async def test_problems_come_after_their_background_and_unanswered_ones_are_wrong(tmp_path: Path) -> None:
    suite = formal(tmp_path, judge=judge_that(lambda body: "yes" if _same(body) else "no"))
    asked: list[str] = []
    overflow = Answer("step_budget", "No reply within 12 steps.", ())
    played = await suite.play("0", seat_of(["a = 3", overflow], asked), seed=0)
    assert asked[:2] == requests_of(suite.rows["0"])
    assert asked[0] == "Background\nLet a be three.\n\nProblem\nWhat is a?"
    assert asked[1] == "What is 2a?"
    assert played.scores == {"PS": 0.5, "SR": 0.0, "SR@1": 1.0, "SR@2": 0.0}
    assert played.detail["judge_tokens"] == {"prompt_tokens": 50, "generated_tokens": 1}


async def test_a_judge_can_come_later_and_only_looks_at_what_has_no_verdict(tmp_path: Path) -> None:
    suite = formal(tmp_path)
    played = await suite.play("0", gold_formal(suite.rows.values()), seed=0)
    assert played.scores == {"PS": None, "SR": None, "SR@1": None, "SR@2": None}
    stored = json.loads(json.dumps(played.detail))
    down = formal(tmp_path, judge=judge_that(lambda body: httpx.Response(503, text="busy")))
    failed = await down.judged(stored)
    assert failed.scores["PS"] is None
    assert failed.detail["subtasks"][0]["verdict"]["fault"] == "HTTP 503: busy"
    calls: list[dict[str, Any]] = []
    suite.judge = judge_that(lambda body: calls.append(body) or "yes")  # type: ignore[func-returns-value]
    done = await suite.judged(failed.detail)
    assert (done.scores["PS"], done.scores["SR"], len(calls)) == (1.0, 1.0, 2)
    assert (await suite.judged(done.detail)).detail == done.detail
    assert len(calls) == 2
    await suite.judged(done.detail, again=True)
    assert len(calls) == 4
    figures = named(suite.figures({"0": [done.scores, played.scores, None]}))
    assert (figures["PS"].value, figures["PS"].n) == (0.5, 2)
    assert "1 of 3 not measured" in figures["PS"].note


@pytest.mark.parametrize("sees", [True, False])
async def test_the_judge_sees_the_question_only_if_told_to(tmp_path: Path, sees: bool) -> None:
    prompts: list[str] = []
    judge = judge_that(lambda body: prompts.append(body["messages"][0]["content"]) or "no")  # type: ignore[func-returns-value]
    suite = formal(tmp_path, judge=judge, judge_sees_question=sees)
    played = await suite.play("0", seat_of(["3", "6"]), seed=0)
    assert played.scores["PS"] == 0.0
    assert all(("What is" in prompt) == sees for prompt in prompts)
    assert ("sees the question" in played.detail["judge"]) == sees


@pytest.mark.parametrize(
    ("text", "substring", "exact"),
    [
        ("yes", True, True),
        ("No.", False, False),
        ("**YES**", True, True),
        ("No, yes would be wrong", True, None),
        ("maybe", False, None),
        (" ", None, None),
    ],
)
def test_how_verdicts_are_read(text: str, substring: bool | None, exact: bool | None) -> None:
    assert read_verdict(text, "substring") is substring
    assert read_verdict(text, "exact") is exact


async def test_a_server_that_takes_no_constraint_is_asked_without() -> None:
    bodies: list[dict[str, Any]] = []

    def says(body: dict[str, Any]) -> httpx.Response | str:
        bodies.append(body)
        return httpx.Response(400, text="unknown field") if "structured_outputs" in body else "yes"

    judge = judge_that(says, extra={"seed": 1})
    assert "constrained" in judge.label
    assert (await judge.ask("?")).yes
    assert (await judge.ask("?")).yes
    assert ["structured_outputs" in body for body in bodies] == [True, False, False]
    assert "unconstrained" in judge.label
    assert bodies[0]["seed"] == 1


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(200, text="no json"),
        httpx.Response(200, json={"choices": []}),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"choices": [{"message": {"content": None}}]}),
        httpx.Response(500, text="oh"),
    ],
)
async def test_a_judge_that_fails_gives_no_verdict_after_three_tries(reply: httpx.Response) -> None:
    calls: list[int] = []
    judge = judge_that(lambda body: calls.append(1) or reply)  # type: ignore[func-returns-value]
    verdict = await judge.ask("?")
    assert verdict.yes is None
    assert verdict.fault
    assert len(calls) == 3


async def test_a_judge_out_of_reach_gives_no_verdict() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    http = httpx.AsyncClient(transport=httpx.MockTransport(refuse))
    assert (await ServerJudge("http://judge", "j", http=http).ask("?")).fault == "ConnectError: refused"
    with pytest.raises(UsageError, match="http"):
        ServerJudge("judge:8000", "j")


# --- shopping -----------------------------------------------------------------------------------------------------


def buys(*asins: str) -> Seat:
    return seat_of([ToolCall(name="buy", arguments={"asin": asin}) for asin in asins])


async def test_all_forms_of_reward_for_what_was_bought(tmp_path: Path) -> None:
    suite = shopping(tmp_path)
    gold = await suite.play("0", gold_shopping(suite.rows.values()), seed=0)
    assert set(gold.scores.values()) == {1.0}
    near = await suite.play("0", buys("B3", "B2"), seed=0)
    assert (near.scores["ps_exact"], near.scores["SR"]) == (0.5, 0.0)
    assert (near.scores["ps_reward_nollm"], near.scores["success_reward1_nollm"]) == (1.0, 1.0)
    assert (near.scores["ps_reward"], near.scores["success_reward1"]) == (None, None)
    suite.judge = judge_that(lambda body: "no" if "gluten" in body["messages"][0]["content"] else "yes")
    judged = await suite.judged(json.loads(json.dumps(near.detail)))
    assert (judged.scores["ps_reward"], judged.scores["success_reward1"]) == (0.5, 0.0)
    suite.judge = judge_that(lambda body: "yes")
    assert (await suite.judged(near.detail)).scores["success_reward1"] == 1.0
    nothing = await suite.play("0", do_nothing, seed=0)
    assert set(nothing.scores.values()) == {0.0}
    figures = named(suite.figures({"0": [gold.scores, near.scores, None]}))
    assert (figures["ps_exact"].value, figures["ps_exact"].n) == (0.5, 3)
    assert (figures["ps_reward"].value, figures["ps_reward"].n) == (0.5, 2)
    assert suite.name == "memory_arena_shopping"


def test_rewards_by_the_formula() -> None:
    mix, large, frosting, hose = (product for record in PRODUCTS if (product := product_of(record)))
    assert reward(None, mix, [True]) == 0.0
    assert reward(mix, mix, []) == 1.0
    assert reward(large, mix, [True, False]) == 0.5
    assert type_factor(hose, mix) == 0.0
    assert type_factor(frosting, replace(mix, name="White cake mix with a hundred sprinkles")) == 1.0
    other = replace(hose, name="White hose")
    assert type_factor(other, replace(mix, name="White a b c d e")) == 0.5
    assert type_factor(other, replace(mix, name="White a b c d e f g h i j k")) == 0.1
    assert has_attribute("Sugar-free / vanilla", "sugar free vanilla")
    assert not has_attribute("Sugar", "sugar free")


async def test_a_target_out_of_the_catalogue_is_reported_and_not_rewarded(tmp_path: Path) -> None:
    row = {**SHOPPING, "answers": [{"target_asin": "B9", "attributes": ["x"]}, SHOPPING["answers"][1]]}
    suite = Shopping(write(tmp_path, "bundled_shopping", row), catalogue())
    assert "1 of 2 targets aren't in the catalogue" in suite.remarks
    played = await suite.play("0", buys("B1", "B2"), seed=0)
    assert (played.scores["ps_exact"], played.scores["ps_reward_nollm"]) == (0.5, None)


async def test_leaks_are_off_and_labelled_when_on(tmp_path: Path) -> None:
    asked: list[str] = []
    calls = [ToolCall(name="buy", arguments={"asin": asin}) for asin in ("B3", "B2")]
    await shopping(tmp_path).play("0", seat_of(calls, asked), seed=0)
    assert asked[0] == SHOPPING["questions"][0]
    assert asked[2] == SHOPPING["questions"][1]
    assert not any("truth" in text for text in asked)
    leaky = shopping(tmp_path, leak_history=True, leak_feedback=True)
    asked.clear()
    played = await leaky.play("0", seat_of(calls, asked), seed=0)
    assert "not matched; the ground-truth item is B1." in asked[1]
    assert asked[2].startswith("Purchase History\nProduct 1: not matched; the ground-truth item is B1.")
    assert leaky.name == "memory_arena_shopping_LEAK_history_LEAK_feedback"
    assert played.detail["leaks"] == ["history", "feedback"]
    assert "LEAK" in leaky.figures({"0": [played.scores]})[0].note


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search", {"query": "vanilla cake mix"}, "B1 | Vanilla Cake Mix, gluten free | $4.50"),
        ("search", {"query": "zebra"}, "Page 1 of 1, 0 results"),
        ("search", {"query": "vanilla", "page": 2}, "there are 1 pages"),
        ("search", {"query": ""}, "0 results"),
        ("open_product", {"asin": "b1"}, "Rating: 4.5\n- ready in an hour"),
        ("open_product", {"asin": "B4"}, "Price: no price"),
        ("open_product", {"asin": "nope"}, "there is no product 'nope'"),
        ("buy", {"asin": "B2"}, "Bought: B2 | White Frosting | $3.00."),
        ("buy", {"asin": "nope"}, "there is no product 'nope'"),
    ],
)
async def test_what_the_shop_says(tmp_path: Path, name: str, arguments: dict[str, Any], said: str) -> None:
    asked: list[str] = []
    call = ToolCall(name=name, arguments=arguments)
    await shopping(tmp_path).play("0", seat_of([call, ""], asked), seed=0)
    assert said in asked[1]


async def test_one_purchase_a_request(tmp_path: Path) -> None:
    class Twice(Scripted):
        async def ask(self, text: str, *, date: str | None = None) -> Answer:
            for asin in ("B1", "B2"):
                result = await self.toolbox.run(ToolCall(name="buy", arguments={"asin": asin}))
            assert "bought already" in result.raw.decode()
            return Answer("replied", "", ())

    played = await shopping(tmp_path).play("0", lambda box, _: Twice(box, iter(()), []), seed=0)
    assert [step["bought"]["asin"] for step in played.detail["steps"]] == ["B1", "B1"]


def test_a_catalogue_from_files(tmp_path: Path) -> None:
    records = [*PRODUCTS, {"asin": "", "name": "x"}, "junk", {**PRODUCTS[0], "name": "Second"}]
    lines, whole = tmp_path / "p.jsonl", tmp_path / "p.json"
    lines.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    whole.write_text(json.dumps(records), encoding="utf-8")
    first, second = Catalogue.open(lines), Catalogue.open(whole)
    assert (len(first), first.skipped) == (len(second), second.skipped) == (4, 2)
    found = first.get("B3")
    assert found == second.get("B3")
    assert found is not None
    assert found.price is not None
    assert 5.0 <= found.price <= 9.0
    prices = {Catalogue.open(lines, seed=seed).get("B3").price for seed in range(5)}  # type: ignore[union-attr]
    assert len(prices) > 1
    assert [one.asin for one in first.search("gluten free, ready in an hour")][:1] == ["B1"]


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "{}"), ("a.json", "["), ("a.jsonl", "["), ("a.json", "[]")]
)
def test_a_catalogue_that_is_none_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        Catalogue.open(tmp_path / name)
    assert "MemoryArena-product-db" in caught.value.hint
    with pytest.raises(UsageError, match="can't be read"):
        Catalogue.open(tmp_path / "absent.json")


def test_the_first_bundles_of_each_category(tmp_path: Path) -> None:
    rows = [{**SHOPPING, "id": i, "category": f"{c}_item_{i}"} for i, c in enumerate(["baking", "home"] * 3)]
    folder = write(tmp_path, "bundled_shopping", *rows)
    assert Shopping(folder, catalogue(), per_category=2).task_ids() == ["0", "1", "2", "3"]
    assert len(Shopping(folder, catalogue()).task_ids()) == 6


# --- metrics ------------------------------------------------------------------------------------------------------


def test_the_depth_curve_and_our_area_under_it() -> None:
    rows: list[list[float | None]] = [[1, 1, 0], [1, 0], [None, 1]]
    assert depth_curve(rows) == [(1.0, 2), (2 / 3, 3), (0.0, 1)]
    assert depth_curve(rows, cumulative=True) == [(1.0, 2), (4 / 5, 5), (4 / 6, 6)]
    assert (nauc([]), nauc([0.4]), nauc([1.0, 0.0]), nauc([1.0, 1.0, 1.0])) == (None, 0.4, 0.5, 1.0)
    assert depth_curve([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_the_area_lies_between_the_lowest_and_the_highest_point(curve: list[float]) -> None:
    area = nauc(curve)
    assert area is not None
    assert min(curve) - 1e-9 <= area <= max(curve) + 1e-9


def test_the_area_stops_where_few_tasks_are_left() -> None:
    depths = {str(i): 2 if i < 5 else 3 for i in range(9)}
    scores = {task: [{f"SR@{k}": 1.0 for k in range(1, n + 1)}] for task, n in depths.items()}
    area = depth_figures(scores, depths)[0]
    assert (area.name, area.value, area.n) == ("nAUC", 1.0, 9)
    assert "our definition; depths 1..2" in area.note
