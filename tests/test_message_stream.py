"""The message is the same however the output is cut into pieces, and nothing else is ever taken for it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstate_local.loop import Agent
from flowstate_local.message_stream import MessageStream
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def streamed(output: str, cuts: list[int]) -> list[str]:
    stream, places = MessageStream(), sorted({0, len(output), *(cut % (len(output) + 1) for cut in cuts)})
    return [stream.feed(output[a:b]) for a, b in zip(places, places[1:], strict=False)]


@given(
    message=TEXT,
    other=TEXT,
    ascii_only=st.booleans(),
    blanks=st.booleans(),
    cuts=st.lists(st.integers(0, 500), max_size=40),
)
def test_the_pieces_join_to_the_message(
    message: str, other: str, ascii_only: bool, blanks: bool, cuts: list[int]
) -> None:
    blocks = {
        "state_delta": [
            {"summary": other},
            {"summary": '"assistant_message":"fake"'},
            {"assistant_message ": other},
        ],
        "thought": "assistant_message",
        "assistant_message": message,
        "after": '"assistant_message":"again"',
    }
    output = json.dumps(blocks, ensure_ascii=ascii_only, separators=(", ", ": ") if blanks else (",", ":"))
    assert "".join(streamed(output, cuts)) == message
    assert "".join(streamed(output, list(range(len(output))))) == message, "a character at a time"


@given(st.text(max_size=200), st.lists(st.integers(0, 200), max_size=9))
def test_rubbish_is_harmless(text: str, cuts: list[int]) -> None:
    streamed(text, cuts)
    streamed('{"assistant_message":"' + text, cuts)


def test_it_comes_as_soon_as_it_can() -> None:
    stream = MessageStream()
    assert [
        stream.feed(piece)
        for piece in ('{"state_delta":[],"assistant_mess', 'age":"H', "ello", "\\", 'n"', "}")
    ] == [
        "",
        "H",
        "ello",
        "",
        "\n",
        "",
    ]


@pytest.mark.parametrize("half", ['"\\ud83d', '"\\ud83d\\u', '"\\ud83d\\ude0'])
def test_half_a_character_waits(half: str) -> None:
    stream = MessageStream()
    assert stream.feed('{"assistant_message":' + half) == ""
    assert stream.feed("\\ude00".removeprefix(half.removeprefix('"\\ud83d')) + '"') == "😀"


@pytest.mark.anyio
@pytest.mark.parametrize("profile", ["guidance", "outlines"])
async def test_an_agent_tells_the_reply_in_pieces(profile: Any) -> None:
    said: list[str] = []
    reply = "It rains in Rome, and it will go on doing so for the rest of the week."
    script = [step(delta=[{"type": "preference", "id": "n1", "summary": "Rome"}]), step(message=reply)]
    engine = ScriptedEngine(script, check=False)
    engine.profile = profile
    result = await Agent(engine, MemoryStore(), on_text=said.append).run("Weather?")
    assert "".join(said) == result.message == reply
    assert (len(said) > 1) == (profile == "guidance")
