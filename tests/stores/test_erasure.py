"""Erasure, export and import on every store: nothing that was erased is found again, and what stays is whole."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowstate_local.erasure import ERASED, erase
from flowstate_local.errors import ConflictError, CorruptValue, StoreBusy, UnknownVersion, UsageError
from flowstate_local.events import RequestStarted
from flowstate_local.history import as_of
from flowstate_local.index import load
from flowstate_local.loop import Agent
from flowstate_local.nodes import EvidenceId, NodeId, RequestId
from flowstate_local.space_export import exported
from flowstate_local.space_import import imported
from flowstate_local.stores.base import Erasure, Store, TaskQuery
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import StepSpec, TaskId, ToolAction, WorkflowSpec
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import tool

pytestmark = pytest.mark.anyio

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda path: MemoryStore(),
    "lmdb": lambda path: LmdbStore.open(path / "store"),
}


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = STORES[request.param](tmp_path)
    yield store
    store.close()


@tool(idempotent=True)
def read_page(name: str) -> str:
    """Read a page."""
    return f"All of {name}: the code word is SWORDFISH"


@tool(idempotent=True)
def read_public(name: str) -> str:
    """Read a public page."""
    return f"All of {name}: open to all"


JOB = WorkflowSpec(
    name="job", steps=(StepSpec(name="a", action=ToolAction(tool="read_page", arguments={"name": "x"})),)
)
SCRIPT = [
    # r1: a secret, a public page, and a node that rests on both
    step(calls=[("read_page", {"name": "SWORDFISH terms"})]),
    step(calls=[("read_public", {"name": "terms"})]),
    step(
        delta=[
            {"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "The word is SWORDFISH"},
            {"type": "knowledge", "id": "n2", "evidence": ["t2"], "summary": "Open to all"},
            {
                "type": "judgement",
                "id": "n3",
                "refs": [{"relation": "supports", "target": "n1"}],
                "summary": "Go ahead",
            },
        ],
        message="Done, with SWORDFISH.",
    ),
    # r2: something that rests on the public page of r1
    step(delta=[{"type": "knowledge", "id": "n4", "evidence": ["t2"], "summary": "Still open"}]),
    step(message="Noted."),
]


async def write(store: Store, space: str = "s") -> None:
    """Two requests, the second of which opens and cites what the first found."""
    agent = Agent(
        ScriptedEngine(SCRIPT, check=False),
        store,
        [read_page, read_public],
        grounded=False,
        clock=lambda: 7.0,
    )
    await agent.run("Find the code word SWORDFISH", space=space)
    await agent.run("And now?", space=space)


def everything(store: Store, space: str = "s") -> str:
    """All that an export tells, raw bytes decoded."""
    reader = store.reader(space)
    raw = [
        reader.blob(event.digest).decode() for event in store.events(space) if event.kind == "ToolFinished"
    ]
    return "\n".join([json.dumps(line) for line in exported(store, space)] + raw)


async def test_a_node_goes_with_its_words_its_raw_result_and_nothing_else(store: Store) -> None:
    await write(store)
    secret = next(e.digest for e in store.events("s") if e.kind == "ToolFinished")
    done = erase(store, "s", nodes=["n1"])
    assert (done.nodes, done.requests, done.evidence) == (("n1",), (), ("t1",))
    assert store.verify("s") == []
    reader = store.reader("s")
    gone = reader.node(NodeId("n1"))
    assert gone is not None
    assert (gone.erased, gone.summary, gone.evidence) == (True, ERASED, ())
    assert reader.evidence(EvidenceId("t1")) is None
    with pytest.raises(CorruptValue):
        reader.blob(secret)
    assert [line.erased for line in reader.lines(RequestId("r1"))] == [True, False, False]
    assert "n1" not in load(reader, floor=0, last_request=2).ids
    kept = reader.node(NodeId("n3"))
    assert kept is not None
    assert [ref.target for ref in kept.refs] == ["n1"], "a tombstone is there for those that refer to it"
    then = as_of(store.events("s"), store.head("s").seq).nodes[NodeId("n1")]
    assert then == gone, "the past doesn't know it either"
    record = reader.request(RequestId("r1"))
    assert record is not None
    assert "SWORDFISH" in record.message, "what the request said is its own; it can be erased whole"


async def test_a_whole_request_leaves_no_word_but_what_others_rest_on(store: Store) -> None:
    await write(store)
    done = erase(store, "s", requests=["r1"])
    assert (set(done.nodes), done.evidence) == ({"n1", "n2", "n3"}, ("t1",))
    assert "SWORDFISH" not in everything(store)
    assert store.verify("s") == []
    assert store.reader("s").evidence(EvidenceId("t2")) is not None, "n4 of r2 rests on it"
    index = load(store.reader("s"), floor=0, last_request=2)
    assert list(index.ids) == ["n4"]
    agent = Agent(ScriptedEngine([step(message="Well.")], check=False), store, [read_page])
    assert (await agent.run("Go on", space="s")).message == "Well."
    assert store.verify("s") == []


async def test_the_last_who_cites_a_result_takes_it_along(store: Store) -> None:
    await write(store)
    assert erase(store, "s", nodes=["n2"]).evidence == ()
    assert erase(store, "s", nodes=["n4"]).evidence == ("t2",)
    assert store.verify("s") == []
    assert erase(store, "s", nodes=["n4"]).evidence == (), "a second time there is nothing left"


async def test_what_cannot_be_erased_is_told_and_nothing_changes(store: Store) -> None:
    await write(store)
    before = everything(store)
    for bad in ({"nodes": ["n99"]}, {"requests": ["r9"]}, {"nodes": ["n1", "what is this"]}, {}):
        with pytest.raises(UsageError):
            erase(store, "s", **bad)  # type: ignore[arg-type]
    with pytest.raises(ConflictError):
        store.erase("s", Erasure({}, [], [], {}, [], []), expected_seq=3)
    start = RequestStarted(request=RequestId("r3"), step=0, at=1.0, text="x")
    assert everything(store) == before
    store.append("s", [start], expected_seq=store.head("s").seq)
    with pytest.raises(StoreBusy):
        erase(store, "s", requests=["r3"])


async def test_a_space_is_erased_whole_and_its_name_is_free(store: Store) -> None:
    await write(store)
    await write(store, "other")
    tasks = TaskManager[Any](store, "s")
    tasks.create(JOB, owner="me", task="job")
    size = store.size_bytes_of("s")
    assert size > store.size_bytes_of("other") > 1_000
    assert store.erase_space("s") is True
    assert store.erase_space("s") is False
    assert (store.spaces(), store.size_bytes_of("s")) == (["other"], 0)
    assert (list(store.events("s")), list(store.nodes("s"))) == ([], [])
    assert (store.task("s", TaskId("job")), list(store.tasks(TaskQuery(owner="me")))) == (None, [])
    assert store.verify("other") == []
    await write(store)
    assert store.verify("s") == []
    assert store.head("s").version == 2


async def test_an_export_comes_back_the_same(store: Store) -> None:
    await write(store)
    lines = [json.dumps(line) for line in exported(store, "s")]
    done = imported(store, "copy", lines)
    assert (done.requests, done.nodes, done.tasks) == (2, 4, 0)
    assert store.verify("copy") == []
    assert list(store.events("copy")) == list(store.events("s"))
    assert list(store.nodes("copy")) == list(store.nodes("s"))
    assert list(store.requests("copy")) == list(store.requests("s"))
    assert store.head("copy") == store.head("s")
    again = [json.dumps(line) for line in exported(store, "copy")]
    assert again[1:] == lines[1:]
    with pytest.raises(UsageError, match="there is a space 'copy' already"):
        imported(store, "copy", lines)


async def test_an_unfinished_request_and_erased_ones_survive_the_journey(store: Store) -> None:
    await write(store)
    erase(store, "s", requests=["r1"])
    start = RequestStarted(request=RequestId("r3"), step=0, at=1.0, text="half done")
    store.append("s", [start], expected_seq=store.head("s").seq)
    imported(store, "copy", [json.dumps(line) for line in exported(store, "s")])
    assert store.head("copy").open_request == "r3"
    assert store.verify("copy") == []


async def test_tasks_travel_too(store: Store) -> None:
    manager = TaskManager[Any](store, "s")
    manager.create(JOB, owner="me", task="job", extras={"note": "x" * 9_000})
    done = imported(store, "copy", [json.dumps(line) for line in exported(store, "s")])
    assert (done.tasks, done.skipped_tasks) == (1, ())
    assert TaskManager[Any](store, "copy").get("job") == manager.get("job")
    assert [record.id for record in store.tasks(TaskQuery(space="copy"))] == ["job"]


async def _lines(tmp_path: Path) -> list[dict[str, Any]]:
    store = MemoryStore()
    await write(store)
    return list(exported(store, "s"))


async def test_bad_exports_are_refused_and_leave_nothing(store: Store, tmp_path: Path) -> None:
    good = await _lines(tmp_path)

    def broken(change: Callable[[list[dict[str, Any]]], object]) -> list[str]:
        lines: list[dict[str, Any]] = json.loads(json.dumps(good))
        change(lines)
        return [json.dumps(line) for line in lines]

    def kind(lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
        return next(line for line in lines if line["kind"] == name)

    cases: dict[str, list[str]] = {
        "empty": [],
        "not JSON": ["{"],
        "a number": ["7"],
        "unknown kind": ['{"kind": "cat"}'],
        "cut": broken(lambda lines: lines.pop()),
        "no head": broken(lambda lines: lines.pop(0)),
        "foreign bytes": broken(lambda lines: kind(lines, "evidence").update(base64="aGVsbG8=")),
        "bad base64": broken(lambda lines: kind(lines, "evidence").update(base64="%%%")),
        "no node": broken(lambda lines: lines.remove(kind(lines, "node"))),
        "no request": broken(lambda lines: lines.remove(kind(lines, "request"))),
        "no raw result": broken(lambda lines: lines.remove(kind(lines, "evidence"))),
        "bad node": broken(lambda lines: kind(lines, "node").update(type="cat")),
        "extra field": broken(lambda lines: kind(lines, "node").update(what=1)),
        "bad head": broken(lambda lines: lines[0].update(seq="x")),
        "unknown head": broken(lambda lines: lines[0].update(what=1)),
    }
    for name, lines in cases.items():
        with pytest.raises(UsageError):
            imported(store, "s", lines)
        assert store.spaces() == [], name
    for change in (
        lambda lines: lines[0].update(format=2),
        lambda lines: kind(lines, "event")["event"].update(schema_version=99),
    ):
        with pytest.raises(UnknownVersion):
            imported(store, "s", broken(change))
    assert store.spaces() == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_a_changed_line_is_refused_or_harmless(data: st.DataObject) -> None:
    source = MemoryStore()
    await write(source)
    lines = [json.dumps(line) for line in exported(source, "s")]
    place = data.draw(st.integers(0, 9_999)) % len(lines)
    cut = data.draw(st.integers(0, 9_999)) % len(lines[place])
    lines[place] = lines[place][:cut] + data.draw(st.text(max_size=5)) + lines[place][cut + 1 :]
    target = MemoryStore()
    try:
        imported(target, "s", lines)
    except (UsageError, UnknownVersion, ConflictError):
        assert target.spaces() == []
    else:
        assert [f for f in target.verify("s") if "differs" not in f.problem] == []


async def test_the_erased_bytes_are_in_no_copy(tmp_path: Path) -> None:
    with LmdbStore.open(tmp_path / "store") as store:
        await write(store)
        word = b"SWORDFISH"
        store.backup(tmp_path / "before")
        assert word in (tmp_path / "before" / "data.mdb").read_bytes()
        erase(store, "s", requests=["r1"])
        store.backup(tmp_path / "after")
        assert word not in (tmp_path / "after" / "data.mdb").read_bytes()


async def test_one_process_erases_and_another_writes_on(tmp_path: Path) -> None:
    """A store remembers where its spaces stood; after somebody else's erasure that is not true any more."""
    import subprocess
    import sys

    with LmdbStore.open(tmp_path / "store") as store:
        await write(store)
        code = (
            "import sys; from flowstate_local.stores.lmdb import LmdbStore\n"
            "with LmdbStore.open(sys.argv[1]) as store: store.erase_space('s')"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True)
        assert store.head("s").seq == 0
        await write(store)
        assert store.spaces() == ["s"]
        assert store.verify("s") == []
