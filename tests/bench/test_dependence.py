"""Dependence: every episode can be solved, only with what it says it depends on, and is the same every time."""

import itertools

import pytest

from flowstate_local.baselines.base import Budget, Method, Setting
from flowstate_local.baselines.flowstate import FlowState
from flowstate_local.baselines.full_context import FullContext
from flowstate_local.bench.dependence.domains import DOMAINS
from flowstate_local.bench.dependence.families import FAMILIES, HELD_OUT, TRAIN
from flowstate_local.bench.dependence.generate import Knobs, _named, episode, episodes, tools_of
from flowstate_local.bench.dependence.oracle import flowstate_script, react_script
from flowstate_local.bench.episode import Episode, Verdict
from flowstate_local.completion import Sampling
from flowstate_local.errors import UsageError
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine

pytestmark = pytest.mark.anyio

ALL = list(episodes(Knobs(requests=6)))
BUDGET = Budget(sampling=Sampling(max_tokens=2_000))


async def play(one: Episode, *, flowstate: bool) -> tuple[Verdict, int]:
    """The verdict when nobody makes a mistake, and what was refused."""
    world = one.world()
    toolbox = tools_of(world, one)
    # Checked: the oracle says only what a constrained model could say.
    script = flowstate_script(one) if flowstate else react_script(one)
    engine = ScriptedEngine(script, context_window=100_000)
    method: Method = (
        FlowState(Setting(engine, toolbox, BUDGET), MemoryStore())
        if flowstate
        else FullContext(Setting(engine, toolbox, BUDGET))
    )
    refused = 0
    for place, ask in enumerate(one.asks, start=1):
        world.asked = place == len(one.asks)
        answer = await method.ask(ask.text, date=ask.date)
        assert answer.outcome == "replied"
        refused += answer.refused_operations + answer.refused_accesses
    return world.verdict(), refused


def test_there_are_eight_families_in_three_domains_and_some_are_kept_apart() -> None:
    assert len(FAMILIES) >= 8
    assert len(DOMAINS) >= 3
    assert not set(TRAIN) & set(HELD_OUT)
    assert len(ALL) == len(FAMILIES) * len(DOMAINS)
    assert {e.family for e in episodes(Knobs(), held_out=True)} == set(HELD_OUT)
    assert {e.family for e in episodes(Knobs(), held_out=False)} == set(TRAIN)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
async def test_whoever_makes_no_mistake_is_right(one: Episode) -> None:
    assert await play(one, flowstate=True) == (Verdict(True, one.truth, one.truth), 0)
    assert await play(one, flowstate=False) == (Verdict(True, one.truth, one.truth), 0)


@pytest.mark.parametrize("one", list(episodes(Knobs(requests=9, hops=4)))[::3], ids=lambda one: one.id)
async def test_a_fact_behind_annexes_can_be_reached(one: Episode) -> None:
    annexes = sorted(topic for topic in one.documents if topic.startswith("annex"))
    assert len(annexes) == 3
    assert await play(one, flowstate=True) == (Verdict(True, one.truth, one.truth), 0)
    assert await play(one, flowstate=False) == (Verdict(True, one.truth, one.truth), 0)


def test_the_same_numbers_give_the_same_episodes_and_other_seeds_others() -> None:
    assert list(episodes(Knobs(requests=6))) == ALL
    others = list(episodes(Knobs(requests=6), seed=1))
    assert not {e.id for e in others} & {e.id for e in ALL}
    assert all(a.documents != b.documents for a, b in zip(others, ALL, strict=True))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_no_answer_can_be_guessed_from_the_family(family: str) -> None:
    truths = [
        (e.truth, e.options) for i in range(40) for e in [episode(family, DOMAINS[0], i, Knobs(requests=6))]
    ]
    places = [options.index(truth) for truth, options in truths]
    assert all(places.count(place) < 32 for place in set(places)), places


def test_the_fact_stands_in_the_papers_and_not_in_the_requests() -> None:
    for one in episodes(Knobs(requests=6), per_cell=5):
        if one.family in ("fee", "offer", "budget"):
            asked = " ".join(ask.text for ask in one.asks)
            calculated = [a["expression"] for ask in one.asks for name, a in ask.calls if name == "calculate"]
            numbers = {n for text in calculated for n in text.split() if n.isdigit()}
            assert numbers, one.id
            papers = " ".join(one.documents.values())
            assert all(n in papers or n in asked for n in numbers), one.id
            assert any(n not in asked for n in numbers), f"{one.id} needs no memory"


@pytest.mark.parametrize(("requests", "raw_chars"), [(6, 300), (20, 1_200), (60, 3_000)])
def test_the_knobs_do_what_they_say(requests: int, raw_chars: int) -> None:
    for one in itertools.islice(episodes(Knobs(requests=requests, raw_chars=raw_chars)), 8):
        assert len(one.asks) == requests
        assert all(raw_chars - 200 < len(text) < raw_chars + 400 for text in one.documents.values())
        assert len({ask.text for ask in one.asks}) == requests


@pytest.mark.parametrize("requests", [0, 1, 1_000])
def test_too_few_or_too_many_requests_are_refused(requests: int) -> None:
    with pytest.raises(UsageError, match="requests"):
        list(episodes(Knobs(requests=requests)))


async def test_a_decision_before_the_question_does_not_count() -> None:
    one = ALL[0]
    world = one.world()
    tools = tools_of(world, one)
    decide = tools.get("decide")
    assert decide is not None
    with pytest.raises(Exception, match="nothing is to be decided"):
        decide(one.truth)
    look_up = tools.get("look_up")
    assert look_up is not None
    topic = next(iter(one.documents))
    assert look_up(topic) == one.documents[topic]
    world.asked = True
    with pytest.raises(Exception, match="closed"):
        look_up(topic)
    with pytest.raises(Exception, match="the options are"):
        decide("perhaps")
    wrong = next(option for option in one.options if option != one.truth)
    decide(wrong)
    decide(one.truth)
    assert world.verdict() == Verdict(False, wrong, one.truth), "the first answer counts"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Hotel Aurora", ["Hotel Aurora"]),
        ("hotel aurora booking terms", ["Hotel Aurora"]),
        ("Aurora", ["Hotel Aurora", "annex 1 of Hotel Aurora"]),
        ("annex 1 of Hotel Aurora", ["annex 1 of Hotel Aurora"]),
        ("ferry", ["the ferry"]),
        ("The ferry timetable", ["the ferry"]),
        ("the museum, part 2", ["the museum, part 2"]),
        ("museum", ["the museum"]),
        ("the moon", []),
        ("", []),
        ("the", []),
    ],
)
def test_a_topic_is_found_by_what_it_is_called(asked: str, found: list[str]) -> None:
    topics = ["Hotel Aurora", "annex 1 of Hotel Aurora", "the ferry", "the museum", "the museum, part 2"]
    assert _named(asked, topics) == found
