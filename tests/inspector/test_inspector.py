"""The inspector in a real browser: what it shows, by mouse and by keyboard, and what it must never do."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from recorded_story import BINARY, FEE, N_LARGE, Recorded

pytest.importorskip("playwright.sync_api", reason="pip install playwright")
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = os.environ.get("FLOWSTATE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
VIEWS = ("request", "graph", "tasks", "tokens")
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(memory: Recorded) -> Iterator[Browser]:
    """After the memory: playwright keeps an event loop in this thread, and recording needs one of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, memory: Recorded) -> Iterator[Open]:
    """`open_page("#/space/trip")`: the page at an address, logged in; in the end nothing may have gone wrong in it."""
    problems: list[str] = []
    contexts: list[Any] = []

    def opened(
        address: str = "", *, key: str | None = None, expect_errors: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        if not expect_errors:
            page.on("console", lambda message: problems.append(f"console {message.type}: {message.text}"))
            page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: note_foreign(request.url))
        page.goto(f"{memory.url}/inspect")
        page.fill("#key", memory.key if key is None else key)
        page.keyboard.press("Enter")
        if address:
            page.wait_for_selector(".view-spaces")
            page.goto(f"{memory.url}/inspect{address}")
        return page

    def note_foreign(url: str) -> None:
        if not url.startswith((memory.url, "data:", "blob:")):
            problems.append(f"request to {url}")

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def test_the_spaces_of_a_key_are_listed(open_page: Open) -> None:
    page = open_page()
    expect(page.locator(".spaces .space")).to_have_count(2)
    expect(page.locator(".spaces")).to_contain_text("1,000 nodes")
    page.click("text=trip")
    expect(page.locator(".requests li")).to_have_count(7)
    expect(page).to_have_title(re.compile("trip: Timeline"))


def test_a_request_is_told_step_by_step(open_page: Open) -> None:
    page = open_page("#/space/trip/request/r7")
    expect(page.locator(".step")).to_have_count(5)
    first = page.locator(".step").first
    expect(first).to_contain_text("unknown_id")
    expect(first.locator(".came-opened")).to_contain_text("n5")
    expect(page.locator(".step").nth(2)).to_contain_text("unparsable")
    bar = page.locator(".step").nth(1).locator(".prompt")
    expect(bar).to_have_attribute("aria-label", re.compile(r"prompt tokens, [\d,]+ of them cached\. rules"))
    cells = page.locator(".step").nth(1).locator(".numbers tbody tr")
    page.locator(".step").nth(1).locator(".numbers summary").click()
    tokens = [
        [int(t.replace(",", "")) for t in row.locator("td").all_inner_texts()[::2]] for row in cells.all()
    ]
    told = [
        int(t.replace(",", "")) for t in re.findall(r"\d[\d,]*", bar.get_attribute("aria-label") or "")[:2]
    ]
    assert sum(row[0] for row in tokens) == told[0], "the segments are the prompt"
    assert sum(row[1] for row in tokens) == told[1], "the cached parts are what was cached"


def test_texts_of_models_and_tools_run_nothing(open_page: Open) -> None:
    for address in ("request/r7", "graph/n10", "tasks/museum-tickets", "tokens"):
        page = open_page(f"#/space/trip/{address}")
        expect(page.locator("main")).to_contain_text("onerror=")
        page.wait_for_timeout(200)
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script").count() == 0


def test_the_hidden_fee_is_a_few_clicks_from_the_decision(open_page: Open, memory: Recorded) -> None:
    page = open_page("#/space/trip/graph")
    page.locator(".nodes a", has_text="Keep Hotel Aurora").last.click()
    chosen = page.locator(".chosen")
    expect(chosen).to_contain_text("judgement")
    expect(chosen.locator(".chain li").first).to_be_visible()
    page.locator(".chosen .chain a.raw").first.click()
    expect(page.locator("dialog#raw")).to_contain_text("sha256")
    expect(page.locator("dialog#raw pre")).to_contain_text(FEE)
    page.keyboard.press("Escape")
    expect(page.locator("dialog#raw")).to_be_hidden()
    expect(chosen).to_contain_text("judgement")


def test_raw_bytes_come_back_as_they_were(open_page: Open, tmp_path: Any) -> None:
    page = open_page("#/space/trip/graph/n11")
    page.locator(".chosen a.raw", has_text="t9").first.click()
    expect(page.locator("dialog#raw")).to_contain_text("hex dump")
    with page.expect_download() as download:
        page.click("text=Save the bytes")
    download.value.save_as(tmp_path / "raw")
    assert (tmp_path / "raw").read_bytes() == BINARY


def test_the_past_is_a_slider_away(open_page: Open) -> None:
    page = open_page("#/space/trip/graph")
    drawn = page.locator("canvas")
    now = 12
    expect(drawn).to_have_attribute("data-drawn", str(now))
    expect(page.locator(".told")).to_have_text("now")
    page.keyboard.press("[")
    page.keyboard.press("[")
    expect(page.locator(".told")).to_contain_text("as of event")
    expect(drawn).not_to_have_attribute("data-drawn", str(now))
    page.locator("#time").fill("0")
    expect(page.locator(".told")).to_contain_text("before everything")
    expect(drawn).to_have_attribute("data-drawn", "0")
    page.get_by_role("button", name="Now", exact=True).click()
    expect(drawn).to_have_attribute("data-drawn", str(now))


def test_a_superseded_node_says_so(open_page: Open) -> None:
    page = open_page("#/space/trip/graph/n2")
    expect(page.locator(".chosen")).to_contain_text("superseded by n")
    expect(page.locator(".nodes a.old")).not_to_have_count(0)


def test_tasks_are_drawn_in_time(open_page: Open) -> None:
    page = open_page("#/space/trip/tasks/trip-review")
    expect(page.locator(".gantt-row[role=listitem]")).to_have_count(4)
    expect(page.locator(".bar-wait:not(.legend i)")).not_to_have_count(0)
    confirm = page.locator(".gantt-row", has_text="confirm")
    expect(confirm).to_have_attribute("aria-label", re.compile("failed .*wait .*done"))
    page.click("text=museum-tickets")
    expect(page.locator(".gantt-row", has_text="reserve")).to_have_attribute("aria-label", re.compile("undo"))
    page.click("text=review-again")
    expect(page.locator(".detail")).to_contain_text("No step of it has run yet")


def test_tokens_add_up(open_page: Open, memory: Recorded) -> None:
    page = open_page("#/space/trip/tokens")
    headers = {"Authorization": f"Bearer {memory.key}"}
    events = httpx.get(
        f"{memory.url}/v1/spaces/trip/timeline", params={"limit": 1000}, headers=headers
    ).json()["data"]
    replies = [event for event in events if event["kind"] == "ModelReplied"]
    expect(page.locator(".totals")).to_contain_text(f"{sum(r['prompt_tokens'] for r in replies):,}")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(7)
    shown = [int(row.locator("td").nth(1).inner_text().replace(",", "")) for row in rows.all()]
    assert sum(shown) == sum(reply["prompt_tokens"] for reply in replies)
    expect(page.locator(".chart")).to_have_count(3)
    page.locator(".bar").last.click()
    expect(page.locator(".request-head h2")).to_have_text("r7")


def test_a_thousand_nodes_can_be_read(open_page: Open) -> None:
    page = open_page("#/space/large/graph")
    canvas = page.locator("canvas")
    expect(canvas).to_have_attribute("data-drawn", str(N_LARGE))
    page.keyboard.press("/")
    page.keyboard.type("judgement place 124")
    expect(canvas).to_have_attribute("data-drawn", "2")
    page.keyboard.press("Escape")
    expect(canvas).to_have_attribute("data-drawn", str(N_LARGE))
    page.uncheck("#type-judgement")
    expect(canvas).to_have_attribute("data-drawn", str(N_LARGE * 6 // 8))
    page.goto(page.url.split("#")[0] + "#/space/large/graph/n16")
    expect(page.locator(".chosen .chain li")).not_to_have_count(0)


def test_everything_by_keyboard(open_page: Open) -> None:
    page = open_page("#/space/trip")
    expect(page.locator(".step").first).to_be_visible()
    page.locator("#main").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".step:focus")).to_have_attribute("data-step", "1")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".step:focus")).to_have_attribute("data-step", "2")
    assert page.url.endswith("/step/2")
    page.keyboard.press("Enter")
    expect(page.locator(".step:focus details.verbatim")).to_have_attribute("open", "")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".request-head h2")).to_have_text("r6")
    page.keyboard.press("2")
    canvas = page.locator("canvas")
    expect(canvas).to_have_attribute("data-drawn", "12")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".chosen .mono").first).to_contain_text("n")
    before = page.url
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"location.href !== {before!r}")
    page.keyboard.press("Enter")
    expect(page.locator(".step:focus")).to_be_visible()
    for number, view in enumerate(VIEWS, start=1):
        page.keyboard.press(str(number))
        expect(page.locator(f".view-{view}")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator("dialog#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("s")
    expect(page.locator(".spaces")).to_be_visible()


@pytest.mark.parametrize("view", ["", *(f"#/space/trip/{view}" for view in VIEWS)])
def test_who_cannot_see_it_can_use_it(open_page: Open, view: str) -> None:
    page = open_page(view)
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("h1").count() == 1
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll("button, input, a, canvas, [role=img]")]
            .filter((e) => e.checkVisibility())
            .filter((e) => !(e.getAttribute("aria-label") || e.textContent.trim() || e.title
                             || (e.labels && e.labels.length)))
            .map((e) => e.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; }
    return [255, 255, 255]; };
  const poor = [];
  for (const e of document.querySelectorAll("main *, header *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility({checkOpacity: true}) || e.closest(":disabled, .visually-hidden, .skip")) continue;
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${e.className} ${e.textContent.slice(0, 30)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_in_both_themes(open_page: Open, scheme: Any) -> None:
    for view in VIEWS:
        page = open_page(f"#/space/trip/{view}", color_scheme=scheme)
        page.wait_for_timeout(300)
        assert page.evaluate(CONTRAST) == [], view
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    for _ in range(2 if scheme == "light" else 1):
        page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_nothing_is_wider_than_the_window(open_page: Open, width: int) -> None:
    for view in VIEWS:
        page = open_page(f"#/space/trip/{view}", viewport={"width": width, "height": 800})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
    page = open_page("#/space/large/tokens", viewport={"width": width, "height": 800})
    page.wait_for_selector(".bars")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_wrong_key_and_what_is_not_ones_own_are_told(open_page: Open, memory: Recorded) -> None:
    page = open_page(key="fs-wrong", expect_errors=True)
    expect(page.locator(".door")).to_contain_text("not accepted")
    for space in ("trip", "nothing"):
        page = open_page(f"#/space/{space}", key=memory.foreign_key, expect_errors=True)
        expect(page.locator(".problem")).to_contain_text("Not found")
        expect(page.locator(".problem")).to_contain_text("belongs to somebody else")


def test_the_key_leaves_with_its_tab(open_page: Open) -> None:
    page = open_page("#/space/trip")
    assert page.evaluate("JSON.stringify(localStorage)").find("fs-") == -1
    assert "fs-" not in page.url
    page.reload()
    expect(page.locator(".step").first).to_be_visible()
    page.click("text=Forget key")
    expect(page.locator("#key")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_the_page_is_served_as_it_should_be(memory: Recorded) -> None:
    answer = httpx.get(f"{memory.url}/inspect")
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.search(r"https?://", answer.text), "nothing from elsewhere"
    assert (
        httpx.get(f"{memory.url}/inspect", headers={"If-None-Match": answer.headers["etag"]}).status_code
        == 304
    )
    for bad in ("nothing.js", "..%2f__init__.py", "%2e%2e%2fapp.py", "inspector.py"):
        assert httpx.get(f"{memory.url}/inspect/{bad}").status_code == 404, bad
