"""/v1/responses with the official client: the same memory, chained by `previous_response_id`."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from flowstate_local.testing import step
from tests.server.conftest import Running
from tests.server.test_chat import CALLS, RAINS, remembering

Serve = Callable[..., Running]
TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}


@pytest.fixture
def client() -> Iterator[Callable[..., openai.OpenAI]]:
    made: list[openai.OpenAI] = []

    def make(server: Running, key: str | None = None) -> openai.OpenAI:
        api_key = key or server.key("ana")
        made.append(openai.OpenAI(base_url=f"{server.url}/v1", api_key=api_key, max_retries=0))
        return made[-1]

    yield make
    for one in made:
        one.close()


Client = Callable[..., openai.OpenAI]


def test_responses_go_on_in_their_space(serve: Serve, client: Client) -> None:
    api = client(serve(remembering))
    first = api.responses.create(model="x", input="I like tea", user="trip")
    assert (first.output_text, first.status) == ("I know 1:", "completed")
    assert first.usage is not None
    assert first.usage.input_tokens > first.usage.input_tokens_details.cached_tokens > 0
    second = api.responses.create(model="x", input="And rooms", previous_response_id=first.id)
    assert second.output_text == "I know 2: I like tea"
    assert second.previous_response_id == first.id
    items: Any = [{"role": "user", "content": [{"type": "input_text", "text": "What else?"}]}]
    third = api.responses.create(model="x", input=items, conversation="trip")
    assert third.output_text == "I know 3: I like tea; And rooms"
    alone = api.responses.create(model="x", input="Hello")
    assert alone.output_text == "I know 1:"
    assert api.responses.retrieve(second.id).output_text == second.output_text


def test_a_client_runs_its_tools(serve: Serve, client: Client) -> None:
    server = serve([CALLS, RAINS])
    key = server.key("ana")
    first = client(server, key).responses.create(model="x", input="Weather in Rome?", tools=[TOOL])
    call: Any = first.output[0]
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Rome"}')
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain all day"}]
    done = client(server, key).responses.create(
        model="x", input=output, previous_response_id=first.id, tools=[TOOL]
    )
    assert done.output_text == "It rains in Rome."
    assert done.id != first.id


@pytest.mark.parametrize("calls", [False, True])
def test_a_stream_has_openais_events_in_their_order(serve: Serve, client: Client, calls: bool) -> None:
    reply = "It rains in Rome, and it will go on raining for the rest of the week, with a cold wind."
    api = client(serve([CALLS if calls else step(message=reply)]))
    with api.responses.stream(model="x", input="Weather?", tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert [e.sequence_number for e in events] == sorted(e.sequence_number for e in events)
    if calls:
        assert final.output[0].name == "weather"  # type: ignore[union-attr]
        assert "response.function_call_arguments.done" in kinds
    else:
        assert final.output_text == reply
        assert kinds.count("response.output_text.delta") > 1
    created: Any = events[0]
    assert created.response.id == final.id


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "nothing new"),
        ({"input": [{"type": "cat"}]}, "'cat'"),
        ({"input": "x", "previous_response_id": "resp_x"}, "no response"),
        ({"input": "x", "previous_response_id": "resp_WyJhIiwicjkiLCIiXQ"}, "no response"),
        ({"input": "x", "previous_response_id": "\u0000"}, "no response"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools.0"),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
            "none of this server's",
        ),
    ],
)
def test_bad_bodies(body: Any, said: str, serve: Serve) -> None:
    server = serve([])
    headers = {"Authorization": f"Bearer {server.key('ana')}"}
    answer = httpx.post(f"{server.url}/v1/responses", json=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


def test_another_tenants_response_is_unknown(serve: Serve, client: Client) -> None:
    server = serve(remembering)
    first = client(server).responses.create(model="x", input="I like tea", user="trip")
    other = client(server, server.key("bob"))
    with pytest.raises(openai.BadRequestError, match="there is no response"):
        other.responses.create(model="x", input="Go on", previous_response_id=first.id)
    with pytest.raises(openai.NotFoundError):
        other.responses.retrieve(first.id)
