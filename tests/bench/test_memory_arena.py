"""MemoryArena: rows, scorers, tools and suites, on small worlds of our own and on sample rows.

The sample rows and tables are found through MEMORY_ARENA_DIR; what needs them is skipped without.
"""

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstate_local.baselines.base import Answer
from flowstate_local.bench.memory_arena import limits
from flowstate_local.bench.memory_arena.catalogue import Basket, Catalogue, Product
from flowstate_local.bench.memory_arena.catalogue import tools_of as shop_tools
from flowstate_local.bench.memory_arena.depth import nauc, pass_at
from flowstate_local.bench.memory_arena.formal import Formal, FormalSettings
from flowstate_local.bench.memory_arena.judge import Judge
from flowstate_local.bench.memory_arena.rows import Day, FormalRow, ShoppingRow, TravelRow, load
from flowstate_local.bench.memory_arena.shopping import Shopping, ShoppingSettings
from flowstate_local.bench.memory_arena.shopping_score import in_name, reward
from flowstate_local.bench.memory_arena.travel import Travel, TravelSettings, submission
from flowstate_local.bench.memory_arena.travel_score import read_plans, score_person, sim, soft
from flowstate_local.bench.memory_arena.travel_tools import FILES, Handed, Tables, tools_of
from flowstate_local.errors import EngineUnavailable, UsageError
from flowstate_local.protocol import ToolCall
from flowstate_local.tools import Toolbox

pytestmark = pytest.mark.anyio

DATA = Path(os.environ.get("MEMORY_ARENA_DIR", "not there"))
with_data = pytest.mark.skipif(not DATA.is_dir(), reason="MEMORY_ARENA_DIR isn't set")

BASE = [
    {"days": 1, "current_city": "Rome", "dinner": "Trattoria, Rome", "accommodation": "Inn, Rome"},
    {"days": 2, "current_city": "Rome", "lunch": "Bar, Rome", "attraction": "Forum, Rome;"},
]
CHANGED = [BASE[0] | {"dinner": "Pizzeria, Rome"}, BASE[1]]
ROW: dict[str, Any] = {
    "id": 7,
    "base_person": {"name": "Jen", "query": "I am Jen.", "daily_plans": BASE},
    "questions": ["I am Eric.\nPizza, please.", "I am Emma.\nAs Eric."],
    "answers": [CHANGED, CHANGED],
}


def write(folder: Path, config: str, *rows: Any) -> Path:
    (folder / config).mkdir(parents=True, exist_ok=True)
    text = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows)
    (folder / config / "data.jsonl").write_text(text + "\n")
    return folder


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    texts = {
        "restaurants": ",Name,City,Cuisines,Average Cost,Aggregate Rating\n0,Pizzeria,Rome,Pizza,20,4.5\n1,Bar,Oslo,Tea,9,3\n",
        "accommodations": ",NAME,room type,price,minimum nights,review rate number,house_rules,maximum occupancy,city\n0,Inn,Private room,80,1,4,No pets,2,Rome\n",
        "attractions": "Name,Latitude,Longitude,Address,Phone,Website,City\nForum,1,2,Via,1,x,Rome\n",
        "distances": 'origin,destination,cost,duration,distance\nRome,Oslo,,20 hours,"2,000 km"\n',
        "cities": "Rome\tLazio\nOstia\tLazio\n",
    }
    for name, text in texts.items():
        path = tmp_path / "tables" / FILES[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tables"


def travel(folder: Path, tables: Path) -> Travel:
    return Travel(TravelSettings(folder=str(folder), tables=str(tables)))


# --- rows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{broken", "line 2: row: Invalid JSON"),
        (ROW | {"id": "x"}, "id: Input should be a valid integer"),
        (ROW | {"answers": [CHANGED]}, "1 answers for 2 questions"),
        (ROW | {"id": 8, "questions": []}, "(id 8): questions"),
        ({k: v for k, v in ROW.items() if k != "base_person"}, "(id 7): base_person: Field required"),
        (ROW, "the id 7 is there twice"),
    ],
)
def test_a_broken_row_is_named(row: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path, "group_travel_planner", ROW, row)
    with pytest.raises(UsageError) as error:
        load(tmp_path, "group_travel_planner", TravelRow)
    assert said in str(error.value)


def test_files_are_found_in_both_places_and_other_content_is_warned_of(
    tmp_path: Path, monkeypatch: Any
) -> None:
    with pytest.raises(UsageError, match="group_travel_planner") as error:
        load(tmp_path, "group_travel_planner", TravelRow)
    assert "hf download" in error.value.hint
    write(tmp_path, "group_travel_planner", ROW)
    rows, warning = load(tmp_path, "group_travel_planner", TravelRow)
    assert rows[0].answers[0][0].dinner == "Pizzeria, Rome"
    assert "NOT COMPARABLE: 1 of 270 rows" in warning
    flat = tmp_path / "flat"
    flat.mkdir()
    raw = (tmp_path / "group_travel_planner" / "data.jsonl").read_bytes()
    from flowstate_local.bench.memory_arena import rows as module

    for form in (raw, raw.replace(b"\n", b"\r\n")):
        (flat / "group_travel_planner.jsonl").write_bytes(form)
        import hashlib

        for known in (raw, raw.replace(b"\n", b"\r\n")):
            monkeypatch.setitem(module.HASHES, "group_travel_planner", hashlib.sha256(known).hexdigest())
            assert load(flat, "group_travel_planner", TravelRow)[1] == "", "either kind of line end"


# --- travel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "value"),
    [
        ("-", "-", 1.0),
        ("", "x", 0.0),
        ("x", "", 0.0),
        (" ", "x", 0.0),
        ("-", "x", 0.0),
        ("Bar, Rome", "bar, rome ", 1.0),
        ("b", "Bar", 1.0),
    ],
)
def test_how_alike_slots_are(a: str, b: str, value: float) -> None:
    assert sim(a, b) == value


@given(st.text(max_size=30), st.text(max_size=30))
def test_likeness_is_a_share_and_the_same_is_one(a: str, b: str) -> None:
    assert 0.0 <= sim(a, b) <= 1.0
    assert sim(a, a) == (1.0 if a.strip() else 0.0)


def days(*plans: dict[str, Any]) -> list[Day]:
    return [Day.model_validate(one) for one in plans]


def test_persons_pass_whole_and_constraints_are_what_differs_from_the_base() -> None:
    base, gold = days(*BASE), days(*CHANGED)
    right = score_person(gold, gold, base)
    assert (right.passed, right.constraints, right.met) == (True, 1, 1)
    copied = score_person(base, gold, base)
    assert (copied.passed, copied.constraints, copied.met) == (False, 1, 0)
    nothing = score_person([], gold, base)
    assert (nothing.passed, nothing.met) == (False, 0)
    late = score_person([day.model_copy(update={"days": day.days + 9}) for day in gold], gold, base)
    assert not late.passed, "unknown days count for nothing"
    unchanged = score_person(base, base, base)
    assert (unchanged.passed, unchanged.constraints) == (True, 0)
    assert soft([right, copied, unchanged]) == 0.5
    assert soft([unchanged]) is None


def test_plans_are_read_from_the_official_text() -> None:
    text = "=== Eric's Plan ===\nDay 1:\nCurrent City: Rome\nDinner: Bar: the old, Rome\nMood: good\n=== Eric's Plan ===\nDay 2:\nlunch: X\n=== Emma's Plan ===\nnothing"
    plans = read_plans(text)
    assert [(d.days, d.lunch, d.dinner) for d in plans["Eric"]] == [(2, "X", "-")], (
        "a repeated name counts last"
    )
    assert plans["Emma"] == []
    assert read_plans(text.split("=== Eric's Plan ===\nDay 2")[0])["Eric"][0].dinner == "Bar: the old, Rome"


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    read_plans(text)
    read_plans("=== A's Plan ===\nDay 1:\n" + text)


async def test_the_look_ups_and_the_hand_in(tables: Path) -> None:
    handed = Handed()
    toolbox = tools_of(Tables(tables), handed)

    async def call(name: str, **arguments: Any) -> tuple[str, str]:
        result = await toolbox.run(ToolCall(name=name, arguments=arguments))
        return result.raw.decode(), result.failure.kind if result.failure else ""

    assert "Pizzeria" in (await call("RestaurantSearch", city="rome "))[0]
    assert "Private room" in (await call("AccommodationSearch", city="Rome"))[0]
    assert "Forum" in (await call("AttractionSearch", city="Rome"))[0]
    assert "20 hours" in (await call("DistanceMatrix", origin="Rome", destination="Oslo"))[0]
    assert (await call("CitySearch", state="lazio"))[0] == "Rome, Ostia"
    for name, arguments in (
        ("RestaurantSearch", {"city": "Nowhere"}),
        ("CitySearch", {"state": "x"}),
        ("DistanceMatrix", {"origin": "x", "destination": "y"}),
    ):
        assert (await call(name, **arguments))[1] == "not_found"
    assert (await call("FlightSearch", origin="a", destination="b", date="2022-03-16"))[1] == "no_table"
    assert (await call("submit_plan", daily_plans=[{"days": 1}]))[1] == "bad_arguments"
    assert handed.plan == []
    whole = [day.model_dump() for day in days(*CHANGED)]
    assert (await call("submit_plan", daily_plans=whole))[1] == ""
    assert handed.plan == days(*CHANGED)


async def test_gold_floor_and_nothing_on_a_small_group(tmp_path: Path, tables: Path) -> None:
    suite = travel(write(tmp_path, "group_travel_planner", ROW), tables)
    row = suite.row("7")
    gold = await suite.play("7", limits.gold(row), seed=0)
    assert gold.scores == {"PS": 1.0, "SR": 1.0, "sPS": 1.0}
    copied = await suite.play("7", limits.copy_base(row), seed=0)
    assert copied.scores == {"PS": 0.0, "SR": 0.0, "sPS": 0.0}
    none = await suite.play("7", limits.nothing, seed=0)
    assert none.scores["PS"] == 0.0
    figures = {f.name: f for f in suite.figures({"7": [gold.scores, None]})}
    assert (figures["PS"].value, figures["PS"].n) == (0.5, 4), (
        "a trial that failed counts for all its persons"
    )
    assert figures["SR"].value == 0.5
    assert "copying the base plan" in figures["PS"].note
    line = submission("7", gold.detail)
    assert (line["id"], line["persons"][1]["person_idx"]) == (7, 2)
    assert line["persons"][0]["plan"][0]["dinner"] == "Pizzeria, Rome"


class Says:
    """A method that replies what it is told to, and does nothing."""

    def __init__(self, *replies: str) -> None:
        self.replies, self.asked = list(replies), list[str]()

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        self.asked.append(text)
        return Answer("replied", self.replies[len(self.asked) - 1], ())

    async def close(self) -> None:
        pass


async def test_a_plan_in_the_reply_counts_as_well_and_the_truth_is_never_told(
    tmp_path: Path, tables: Path
) -> None:
    suite = travel(write(tmp_path, "group_travel_planner", ROW), tables)
    text = "".join(
        f"Day {d.days}:\n" + "".join(f"{k}: {v}\n" for k, v in d.model_dump().items() if k != "days")
        for d in days(*CHANGED)
    )
    method = Says("ok", f"=== Eric's Plan ===\n{text}", "")
    played = await suite.play("7", lambda toolbox, instructions: method, seed=0)
    assert played.detail["scores_by_request"] == [1.0, 0.0]
    assert not any("Pizzeria" in asked for asked in method.asked)


def test_missing_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="clean_restaurant_2022.csv") as error:
        Tables(tmp_path)
    assert "TravelPlanner" in error.value.hint


@with_data
async def test_the_sample_group_scores_eight_of_eight_with_gold_and_one_with_the_base_plan() -> None:
    suite = travel(DATA / "samples_transcribed", DATA / "travel_planner_database")
    row = suite.row("1")
    gold = await suite.play("1", limits.gold(row), seed=0)
    copied = await suite.play("1", limits.copy_base(row), seed=0)
    assert sum(gold.detail["scores_by_request"]) == len(row.questions) == 8
    assert (gold.scores["SR"], gold.scores["sPS"]) == (1.0, 1.0)
    assert sum(copied.detail["scores_by_request"]) == 1
    assert (copied.scores["SR"], copied.scores["sPS"]) == (0.0, 0.0)


@with_data
def test_the_sample_preferences_can_be_met_from_the_tables() -> None:
    """Eric's four wishes in group 1 each fit one restaurant of Rockford, the right one."""
    here = [r for r in Tables(DATA / "travel_planner_database").restaurants if r["City"] == "Rockford"]
    wishes = [
        ({"Desserts", "Bakery"}, 67.6, 80.4),
        ({"Mexican"}, 70.3, 81.7),
        ({"Desserts", "French"}, 22.3, 41.7),
    ]
    rows, _ = load(DATA / "samples_transcribed", "group_travel_planner", TravelRow)
    eric = rows[0].answers[0]
    right = [eric[1].breakfast, eric[1].dinner, eric[2].dinner]
    for (cuisines, low, high), name in zip(wishes, right, strict=True):
        fits = [
            f"{r['Name']}, Rockford"
            for r in here
            if cuisines <= set(r["Cuisines"].split(", ")) and low <= float(r["Average Cost"]) <= high
        ]
        assert fits == [name]


@with_data
def test_the_other_sample_rows_have_the_described_shape() -> None:
    shopping, _ = load(DATA / "samples_transcribed", "bundled_shopping", ShoppingRow)
    assert (len(shopping[0].questions), shopping[0].answers[0].target_asin) == (6, "B00TUDFEW2")
    raw = DATA / "samples_transcribed" / "formal_reasoning_math_ABRIDGED" / "data.jsonl"
    assert len(FormalRow.model_validate_json(raw.read_text().splitlines()[0]).questions) == 5


# --- formal reasoning ---------------------------------------------------------------------------------------------

PAPER = {
    "id": 3,
    "paper_name": "p",
    "questions": ["One?", "Two?"],
    "answers": ["1", "2"],
    "backgrounds": ["Let x=1", ""],
}


@pytest.fixture
def judging() -> Iterator[Any]:
    """A server that judges as it is told: `judging(words, status)` -> url, bodies."""
    servers: list[HTTPServer] = []

    def start(say: Any, status: int = 200) -> tuple[str, list[Any]]:
        bodies: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                said = say(bodies[-1]) if callable(say) else say
                text = (
                    json.dumps({"choices": [{"message": {"content": said}}]})
                    if isinstance(said, str)
                    else "rubbish"
                )
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/v1", bodies

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


async def test_questions_go_with_their_background_and_the_judge_comes_later(
    tmp_path: Path, judging: Any
) -> None:
    write(tmp_path, "formal_reasoning_math", PAPER)
    suite = Formal("math", FormalSettings(folder=str(tmp_path)))
    method = Says("1", "zwei")
    played = await suite.play("3", lambda toolbox, instructions: method, seed=0)
    assert method.asked == [
        "Background\nLet x=1\n\nProblem\nOne?",
        "Background\nNo information provided.\n\nProblem\nTwo?",
    ]
    assert played.scores == {"PS": None, "SR": None}
    assert "1 not judged" in suite.figures({"3": [played.scores]})[0].note
    url, bodies = judging(lambda body: "no" if "zwei" in body["messages"][0]["content"] else "Yes.")
    judged = Formal("math", FormalSettings(folder=str(tmp_path), judge_url=url, judge_model="j"))
    scores, detail = await judged.second_pass("3", played.scores, played.detail)
    assert scores == {"PS": 0.5, "SR": 0.0}
    assert detail["scores_by_request"] == [1.0, 0.0]
    assert "One?" not in bodies[0]["messages"][0]["content"], "officially the judge sees no question"
    assert bodies[0]["structured_outputs"] == {"choice": ["yes", "no"]}


@pytest.mark.parametrize(
    ("said", "parse", "verdict"),
    [
        ("yes", "exact", True),
        ("No.", "exact", False),
        ("perhaps", "exact", None),
        ("perhaps", "substring", False),
        ("eyes", "substring", True),
    ],
)
async def test_how_the_judge_is_understood(said: str, parse: Any, verdict: bool | None, judging: Any) -> None:
    url, _ = judging(said)
    assert await Judge(url, "j", parse=parse).same("q", "a", "b") is verdict


async def test_a_judge_that_is_away_or_talks_rubbish_loses_nothing(tmp_path: Path, judging: Any) -> None:
    assert await Judge("http://127.0.0.1:1/v1", "j").same("q", "", "b") is False, (
        "an empty answer needs no judge"
    )
    with pytest.raises(EngineUnavailable, match="can't be reached"):
        await Judge("http://127.0.0.1:1/v1", "j").same("q", "a", "b")
    url, _ = judging(None)
    with pytest.raises(Exception, match="no completion"):
        await Judge(url, "j").same("q", "a", "b")
    url, _ = judging("yes", status=500)
    with pytest.raises(EngineUnavailable, match="status 500"):
        await Judge(url, "j").same("q", "a", "b")
    url, bodies = judging("yes", status=400)
    with pytest.raises(Exception, match="refuses"):
        await Judge(url, "j").same("q", "a", "b")
    assert "structured_outputs" not in bodies[1], "asked again as servers know it that have no choices"


# --- shopping -----------------------------------------------------------------------------------------------------

PRODUCTS = [
    {
        "asin": "B01",
        "name": "Gluten-Free Vanilla Cake Mix",
        "category": "Food › Baking › Mixes",
        "pricing": "$4.99 - $7.00",
        "rating": 4.5,
    },
    {"asin": "B02", "name": "Vanilla Frosting", "category": "Food › Baking › Toppings", "price": 3},
    {"asin": "B03", "name": "Garden Hose", "category": "Garden", "description": ["long", "green"]},
]
BUNDLE = {
    "id": 0,
    "category": "baking_item_0",
    "questions": ["Product 1:", "Product 2:"],
    "answers": [
        {"target_asin": "B01", "attributes": ["gluten free", "vanilla"]},
        {"target_asin": "B02", "attributes": ["vanilla", "white"]},
    ],
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "items.json").write_text(json.dumps(PRODUCTS))
    return tmp_path / "items.json"


async def test_the_shop_searches_shows_and_sells_once(shop: Path) -> None:
    basket = Basket()
    toolbox = shop_tools(Catalogue(shop), basket)

    async def call(name: str, **arguments: Any) -> str:
        return (await toolbox.run(ToolCall(name=name, arguments=arguments))).raw.decode()

    assert (
        (await call("search", query="vanilla frosting"))
        .splitlines()[0]
        .startswith("B02: Vanilla Frosting ($3.00)")
    )
    assert "nothing is found" in await call("search", query="submarine")
    assert "$4.99" in await call("open_product", asin="b01"), "a range is its lower end"
    assert "no product" in await call("open_product", asin="B99")
    assert "no product" in await call("buy", asin="B99")
    assert "Bought B01" in await call("buy", asin="B01")
    assert "already" in await call("buy", asin="B02")
    assert basket.asin == "B01"


class Buys(Says):
    def __init__(self, toolbox: Toolbox, *asins: str) -> None:
        super().__init__()
        self.toolbox, self.asins = toolbox, list(asins)

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        self.asked.append(text)
        if asin := self.asins[len(self.asked) - 1]:
            await self.toolbox.run(ToolCall(name="buy", arguments={"asin": asin}))
        return Answer("replied", "", ())


async def test_bundles_are_scored_by_the_very_product_and_by_what_was_met(tmp_path: Path, shop: Path) -> None:
    write(tmp_path, "bundled_shopping", BUNDLE)
    suite = Shopping(ShoppingSettings(folder=str(tmp_path), products=str(shop)))

    async def play(*asins: str, suite: Shopping = suite) -> tuple[Any, Buys]:
        made: list[Buys] = []

        def seat(toolbox: Toolbox, instructions: str) -> Buys:
            made.append(Buys(toolbox, *asins))
            return made[0]

        return (await suite.play("0", seat, seed=0)).scores, made[0]

    assert (await play("B01", "B02"))[0] == {
        "ps_exact": 1.0,
        "SR": 1.0,
        "ps_reward_nollm": 1.0,
        "success_reward1": 1.0,
    }
    scores, method = await play("B01", "")
    assert (scores["ps_exact"], scores["ps_reward_nollm"], scores["SR"]) == (0.5, 0.5, 0.0)
    assert method.asked == BUNDLE["questions"], "nothing leaks"
    leaking = Shopping(
        ShoppingSettings(folder=str(tmp_path), products=str(shop), include_history=True, enable_feedback=True)
    )
    _, method = await play("B03", "B02", suite=leaking)
    assert "the right one was B01" in method.asked[1]
    assert "Product 1 was wrong" in method.asked[1]
    assert "LEAK: include_history, enable_feedback" in leaking.figures({"0": [None]})[0].note


async def test_rewards_go_by_attributes_and_kind() -> None:
    def product(asin: str, name: str, category: str = "") -> Product:
        return Product(asin, name, category, None, "", "")

    target = product("B01", "Gluten-Free Vanilla Cake Mix", "Food › Baking › Mixes")
    ask = {"attributes": ["gluten free", "vanilla"], "asin": "B01", "match": in_name}
    assert await reward(None, target, **ask) == 0.0  # type: ignore[arg-type]
    assert await reward(target, target, **ask) == 1.0  # type: ignore[arg-type]
    like = product("X", "Vanilla Cake", "Food › Baking › Cakes")
    assert await reward(like, target, **ask) == 0.5  # type: ignore[arg-type]
    other = product("X", "Gluten free vanilla perfume", "Beauty")
    assert await reward(other, target, **ask) == 1.0, "another product can reach it"  # type: ignore[arg-type]
    hose = product("X", "Garden Hose", "Garden")
    assert await reward(hose, target, **ask) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "[]", "[{]", '[{"asin": "B01"}]', "[7]", '{"asin": ""}'])
def test_a_bad_catalogue_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "items.json").write_text(text)
    with pytest.raises(UsageError):
        Catalogue(tmp_path / "items.json")
    with pytest.raises(UsageError, match="can't be read"):
        Catalogue(tmp_path / "none.json")


# --- depth --------------------------------------------------------------------------------------------------------


def test_curves_over_depth() -> None:
    scores = [[1.0, 0.0, 1.0], [1.0, None], [0.0]]
    assert pass_at(scores) == [(1, 2 / 3, 3), (2, 0.0, 2), (3, 1.0, 1)]
    assert pass_at([]) == []
    assert nauc([[1.0, 1.0, 1.0]] * 5) == 1.0
    assert nauc([[1.0, 0.0]] * 5) == 0.5
    assert nauc([[1.0, 0.0]] * 4) is None, "too few tasks"
    assert nauc([[1.0, 1.0]] * 5 + [[1.0, 1.0, 0.0]] * 2) == 1.0, "what few reach is left out"


async def test_episodes_do_not_share_anything(tmp_path: Path, tables: Path) -> None:
    suite = travel(write(tmp_path, "group_travel_planner", ROW), tables)
    row = suite.row("7")
    both = await asyncio.gather(
        suite.play("7", limits.gold(row), seed=0), suite.play("7", limits.copy_base(row), seed=0)
    )
    assert [played.scores["PS"] for played in both] == [1.0, 0.0]
