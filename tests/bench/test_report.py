"""The report: everything of the run is in it, it needs nothing else, and hostile text stays text."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from flowstate_local.baselines.base import Answer, Usage
from flowstate_local.bench.accounting import Prices, load_prices
from flowstate_local.bench.records import Record, RunConfig, read_config, read_records, writing
from flowstate_local.bench.report.charts import Line, line_chart, short, stacked_bars
from flowstate_local.bench.report.html import page
from flowstate_local.bench.report.markdown import document
from flowstate_local.bench.report.view import chart_depth, load_run
from flowstate_local.errors import UsageError

EVIL = '<script>alert("x")</script>|'


class Reader(HTMLParser):
    """Collects text, and checks that tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "line", "rect", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def answer(request: int, prompt: int) -> Answer:
    usage = Usage(request, 1, {"rules": prompt, "index": 3 * request}, prompt // 2, 20, 1.0)
    return Answer("replied", "ok", (usage,), looks=2, useless_looks=1)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    def make(
        requests: int = 6, name: str = "run", methods: tuple[str, ...] = ("flowstate", "bm25", EVIL)
    ) -> Path:
        settings = {"requests": requests}
        config = RunConfig(
            suite="dependence",
            settings=settings,
            methods=methods,
            trials=1,
            seed=0,
            model=EVIL,
            engine="vllm",
            profile="guidance",
            window=8_192,
            max_steps=12,
            max_tokens=700,
            memory_tokens=1_000,
            temperature=0.1,
            top_p=1.0,
            version="1",
        )
        with writing(tmp_path / name, config) as folder:
            for place, task in enumerate(("fee-travel-0-0", "budget-office-0-0")):
                for method in methods:
                    right = float(method == "flowstate" or place == 0)
                    record = Record(
                        task=task,
                        method=method,
                        trial=0,
                        started_at=0.0,
                        wall_s=1.0,
                        engine_s=30.0,
                        scores={"right": right, "decided": 1.0},
                        answers=tuple(
                            answer(n, 1_000 if method == "flowstate" else 700 * n)
                            for n in range(1, requests + 1)
                        ),
                        error=EVIL if method == EVIL else "",
                    )
                    folder.write(record, {"task": task, "method": method, "trial": 0, "calls": []})
        return tmp_path / name

    return make


def test_the_page_holds_the_run_and_nothing_from_elsewhere(made: Callable[..., Path]) -> None:
    text = page([load_run(made())], Prices(engine_hour=3.6, currency="EUR"))
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert not any(tag in ("script", "link", "img", "iframe") for tag, _ in reader.tags)
    assert not any(
        name in ("src", "href") or name.startswith("on") for _, attrs in reader.tags for name in attrs
    )
    for said in ("1.000", "0.500", "+0.500", "12,126", "step", "EUR", "guessing among the options", EVIL):
        assert said in reader.text, said
    assert "prefers-color-scheme: dark" in text
    assert text.count("<svg") == 4


def test_markdown_says_the_same_and_a_bar_in_a_name_breaks_no_table(made: Callable[..., Path]) -> None:
    text = document([load_run(made())])
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 6
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table}) == 1, table
    assert "| flowstate | 1.000 |" in text


def test_depth_is_drawn_from_several_runs(made: Callable[..., Path]) -> None:
    runs = [load_run(made(n, f"run{n}", ("flowstate", "bm25"))) for n in (6, 9)]
    assert "Score against depth" in page(runs)
    assert "Score against depth" not in page(runs[:1])


def test_a_run_that_is_not_done_says_so(made: Callable[..., Path]) -> None:
    folder = made()
    lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text("".join(lines[:-1]))
    run = load_run(folder)
    assert run.missing == 1
    assert "Not played of what was planned: 1" in page([run])
    (folder / "episodes.jsonl").write_text("")
    with pytest.raises(UsageError, match="no episode is done"):
        load_run(folder)


@pytest.mark.parametrize("text", ["prompt: -1", "price: 3", "[1, 2]", "prompt: [", "prompt: many"])
def test_bad_price_files_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(text)
    with pytest.raises(UsageError, match="no price file"):
        load_prices(tmp_path / "prices.yaml")
    with pytest.raises(UsageError, match="No such file"):
        load_prices(tmp_path / "none.yaml")


def test_charts_draw_nothing_from_nothing_and_stay_inside() -> None:
    assert line_chart([], x="x", y="y") == line_chart([Line("a", [], 0)], x="x", y="y") == ""
    assert (
        stacked_bars({}, {}, unit="tokens") == stacked_bars({"a": {"p": 0.0}}, {"p": 0}, unit="tokens") == ""
    )
    many = line_chart([Line(f"m{i}", [(1, 10), (2, 10 + i)], i) for i in range(12)], x="x", y="y")
    tops = [float(part.partition('"')[0]) for part in many.split(' y="')[1:]]
    assert all(0 <= top <= 300 for top in tops)
    assert (short(1_234_567), short(999), short(0.5)) == ("1.23M", "999", "0.5")


def test_scores_of_each_request_are_drawn_against_its_number(made: Callable[..., Path]) -> None:
    folder = made(6, methods=("flowstate",))
    config = read_config(folder)
    with writing(folder, config) as run:
        for record in read_records(folder).values():
            run.amend(
                record.model_copy(update={"scores": {"right": 1.0, "SR@1": 1.0, "SR@2": None, "SR@3": 0.0}})
            )
    drawn = chart_depth([load_run(folder)])
    assert [f"flowstate: {k}," in drawn for k in (1, 2, 3)] == [True, False, True]
