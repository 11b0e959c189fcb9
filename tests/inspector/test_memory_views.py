"""What the inspector asks beyond the memory API: events of a request, moments, costs, raw results as text, tasks."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from recorded_story import BINARY, FEE, HOSTILE, Recorded

PATHS = [
    "/requests/r1/events",
    "/moment",
    "/moment?seq=3",
    "/costs",
    "/evidence/t1/text",
    "/evidence/t7/text?within=r7",
    "/tasks",
    "/tasks/trip-review",
]


@pytest.fixture
def api(memory: Recorded) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {memory.key}"}
    with httpx.Client(base_url=f"{memory.url}/v1/spaces/trip", headers=headers) as client:
        yield client


def test_a_request_has_its_own_events(api: httpx.Client) -> None:
    whole = api.get("/timeline", params={"limit": 1000}).json()["data"]
    one = api.get("/requests/r6/events").json()
    assert one["events"] == [event for event in whole if event["request"] == "r6"]
    assert one["record"]["outcome"] == "replied"


def test_a_moment_tells_what_was_in_the_making(api: httpx.Client) -> None:
    log = api.get("/requests/r6/events").json()["events"]
    seq = next(e["seq"] for e in log if e["kind"] == "DeltaCommitted" and e["added"][0]["id"] == "n8")
    then = api.get("/moment", params={"seq": seq}).json()
    assert (then["kind"], then["request"], then["step"], then["requests"]) == ("DeltaCommitted", "r6", 4, 5)
    assert [node["id"] for node in then["making"]] == ["n7", "n8"]
    assert {"source": "n8", "relation": "supersedes", "target": "n2"} in then["making_edges"]
    assert then["opened"] == ["n2", "n1", "t1"]
    now = api.get("/moment").json()
    assert (now["seq"], now["nodes"], now["making"]) == (now["last"], 12, [])
    start = api.get("/moment", params={"seq": 0}).json()
    assert (start["kind"], start["requests"], start["nodes"]) == ("", 0, 0)


def test_costs_are_those_of_the_replies(api: httpx.Client) -> None:
    first, *_, last = api.get("/costs").json()["data"]
    replies = [e for e in api.get("/requests/r1/events").json()["events"] if e["kind"] == "ModelReplied"]
    assert first["calls"] == len(replies) == 2
    assert first["prompt_tokens"] == sum(reply["prompt_tokens"] for reply in replies)
    assert sum(first["segments"].values()) == first["prompt_tokens"]
    assert list(first["segments"])[:2] == ["rules", "tools"]
    assert last["request"] == "r7"
    page = api.get("/costs", params={"limit": 3}).json()
    assert [cost["request"] for cost in page["data"]] == ["r1", "r2", "r3"]
    assert api.get("/costs", params={"limit": 3, "after": page["next"]}).json()["data"][0]["request"] == "r4"


def test_raw_results_as_text(api: httpx.Client) -> None:
    terms = api.get("/evidence/t1/text").json()
    assert FEE in terms["text"]
    assert (terms["form"], terms["page"], terms["pages"], terms["kept"]) == ("text", 1, 1, True)
    pages = [api.get("/evidence/t8/text", params={"page": n}).json() for n in (1, 2)]
    assert pages[0]["pages"] > 1
    assert pages[0]["text"].startswith(HOSTILE)
    whole = api.get("/evidence/t8").text
    assert whole.startswith(pages[0]["text"] + pages[1]["text"])
    assert api.get("/evidence/t8/text", params={"page": 99}).status_code == 400


def test_bytes_that_are_no_text_are_dumped(api: httpx.Client) -> None:
    first = api.get("/evidence/t9/text").json()
    dumped = "".join(
        api.get("/evidence/t9/text", params={"page": n}).json()["text"] + "\n"
        for n in range(1, first["pages"] + 1)
    )
    assert first["form"] == "hex"
    assert first["text"].startswith("00000000  00 01 02 03")
    assert bytes.fromhex("".join(line[10:57] for line in dumped.splitlines())) == BINARY


def test_a_result_that_no_node_cites_is_found_in_its_request_only(api: httpx.Client) -> None:
    assert api.get("/evidence/t7/text").status_code == 404
    assert api.get("/evidence/t7/text", params={"within": "r6"}).status_code == 404
    found = api.get("/evidence/t7/text", params={"within": "r7"}).json()
    assert (found["kept"], found["record"]["tool"]) == (False, "read_menu")
    assert "closed today" in found["text"]


def test_tasks_with_their_steps_and_events(api: httpx.Client) -> None:
    listed = api.get("/tasks").json()["data"]
    assert [(t["id"], t["status"], t["space"]) for t in listed] == [
        ("trip-review", "completed", "trip"),
        ("museum-tickets", "failed", "trip"),
        ("review-again", "pending", "trip"),
    ]
    review = api.get("/tasks/trip-review").json()
    states = {step["name"]: step["state"] for step in review["steps"]}
    assert states["confirm"]["attempt"] == 2
    assert [e["seq"] for e in review["events"]] == list(range(1, review["record"]["seq"] + 1))
    failed = api.get("/tasks/museum-tickets").json()
    assert {step["name"]: step["state"]["undo"] for step in failed["steps"]}["reserve"] == "completed"


@pytest.mark.parametrize("path", PATHS)
def test_nothing_of_it_is_for_anybody_else(path: str, memory: Recorded, api: httpx.Client) -> None:
    assert api.get(path).status_code == 200

    def foreign(space: str) -> httpx.Response:
        return httpx.get(
            f"{memory.url}/v1/spaces/{space}{path}", headers={"Authorization": f"Bearer {memory.foreign_key}"}
        )

    there, nowhere = foreign("trip"), foreign("none")
    assert (there.status_code, nowhere.status_code) == (404, 404)
    assert there.json()["error"]["message"].replace("trip", "none") == nowhere.json()["error"]["message"]
    assert httpx.get(f"{memory.url}/v1/spaces/trip{path}").status_code == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/requests/r99/events", 404),
        ("/requests/x/events", 404),
        ("/moment?seq=99999", 400),
        ("/moment?seq=-1", 400),
        ("/evidence/t99/text", 404),
        ("/evidence/t7/text?within=r99", 404),
        ("/evidence/t1/text?page=0", 400),
        ("/tasks/none", 404),
        ("/tasks/NOT%20AN%20ID", 400),
        ("/costs?after=x", 400),
    ],
)
def test_bad_reads_are_told(path: str, status: int, api: httpx.Client) -> None:
    answer: Any = api.get(path)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_the_page_is_locked_down(memory: Recorded) -> None:
    page = httpx.get(f"{memory.url}/inspect")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "<script>" not in page.text
    assert " style=" not in page.text
    assert httpx.get(f"{memory.url}/inspect/", follow_redirects=True).text == page.text
    script = httpx.get(f"{memory.url}/inspect/app.js")
    assert script.headers["content-type"].startswith("text/javascript")
    again = httpx.get(f"{memory.url}/inspect/app.js", headers={"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("none.js", "..%2fapp.py", "%2e%2e%2finspector.py", "__init__.py"):
        assert httpx.get(f"{memory.url}/inspect/{name}").status_code == 404
