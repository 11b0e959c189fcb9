"""SIGKILL just before and just after every event of a request: the store is whole, the request resumes, and the
tool that must not run twice does not."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowstate_local.stores.lmdb import LmdbStore
from tests.crash_child import agent_of, main

pytestmark = pytest.mark.anyio

POINTS = [
    f"{moment} {kind} {number}"
    for moment in ("before", "after")
    for kind, numbers in {
        "RequestStarted": [0],
        "StepStarted": [1, 2, 3, 4],
        "ModelReplied": [1, 2, 3, 4],
        "DeltaCommitted": [1, 4],
        "Disclosed": [2],
        "ToolStarted": [1, 3],
        "ToolFinished": [1, 3],
        "RequestFinished": [4],
    }.items()
    for number in numbers
]

UNKNOWN = {"after ModelReplied 3", "after ToolStarted 3", "before ToolFinished 3", "before StepStarted 4"}
"""Here `pay` was started durably and its end was not."""

FINISHED = {"after ModelReplied 4", "after DeltaCommitted 4", "after RequestFinished 4"}


async def test_the_points_are_all_events_of_an_undisturbed_request(tmp_path: Path) -> None:
    result = await main(tmp_path, "never")
    assert (result.outcome, result.message) == ("replied", "done")
    store = LmdbStore.open(tmp_path / "store")
    seen = {f"{event.kind} {event.step}" for event in store.events("s")}
    assert seen == {point.split(" ", 1)[1] for point in POINTS}


@pytest.mark.parametrize("point", POINTS)
async def test_killed_there_it_resumes(point: str, tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.crash_child", str(tmp_path), point],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    with LmdbStore.open(tmp_path / "store") as store:
        assert store.verify("s") == []
        agent = agent_of(tmp_path, store)
        result = await agent.resume("s")
        if point in ("before RequestStarted 0", "before StepStarted 1"):
            assert result is None  # nothing was written, so there is nothing to go on with
            result = await agent.run("Pay for the ox", space="s")
        elif point in FINISHED:
            assert result is None  # all of it was written
        else:
            assert result is not None
            assert result.outcome == "replied"
        assert store.verify("s") == []
        assert [node.id for node in store.nodes("s")] == ["n1", "n2"]
        paid = (tmp_path / "paid").read_text() if (tmp_path / "paid").exists() else ""
        outcomes = [
            e.failure.kind if e.failure else "" for e in store.events("s") if e.kind == "ToolFinished"
        ]
        # Between the two commits nobody can know whether the call took effect, so the model is told just that.
        assert outcomes == ["", "", "unknown_outcome" if point in UNKNOWN else ""]
        assert paid == ("" if point in UNKNOWN and point.startswith("after") else "7\n")
