"""Chat completions with the official client: conversations with a memory, tools on either side, streams, errors."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from flowstate_local.server.admission import Limits
from flowstate_local.server.turn_stream import unsaid
from flowstate_local.testing import step
from flowstate_local.tools import tool
from tests.server.conftest import Running

pytestmark = pytest.mark.anyio
Serve = Callable[..., Running]

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@pytest.fixture
def client() -> Iterator[Callable[..., openai.OpenAI]]:
    """`client(server, key)`: the official client, without retries of its own."""
    made: list[openai.OpenAI] = []

    def make(server: Running, key: str | None = None, path: str = "/v1") -> openai.OpenAI:
        made.append(
            openai.OpenAI(base_url=server.url + path, api_key=key or server.key("ana"), max_retries=0)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


Client = Callable[..., openai.OpenAI]


def remembering(prompt: str) -> Any:
    """Notes every request, and says what the index holds."""
    turn = prompt.rpartition("INDEX\n")[2]
    index, _, rest = turn.partition("REQUEST")
    n = index.count(" preference: ") + 1
    asked = rest.partition("\n")[2].partition("\n")[0]
    if "added n" not in rest:
        return step(delta=[{"type": "preference", "id": f"n{n}", "summary": asked}])
    return step(
        message=f"I know {n}: "
        + "; ".join(line.partition(": ")[2] for line in index.splitlines() if " preference: " in line)
    )


def test_a_conversation_has_a_memory_of_its_space_alone(serve: Serve, client: Client) -> None:
    server = serve(remembering)
    api = client(server)
    first = api.chat.completions.create(
        model="x", user="trip", messages=[{"role": "user", "content": "I like tea"}]
    )
    assert first.choices[0].message.content == "I know 1:"
    assert first.choices[0].finish_reason == "stop"
    assert first.usage is not None
    assert first.usage.prompt_tokens > first.usage.prompt_tokens_details.cached_tokens > 0  # type: ignore[union-attr]
    history: Any = [
        {"role": "user", "content": "I like tea"},
        {"role": "assistant", "content": "I know 1:"},
        {"role": "user", "content": "And quiet rooms"},
    ]
    whole = api.chat.completions.create(model="x", user="trip", messages=history)
    assert whole.choices[0].message.content == "I know 2: I like tea"
    last = api.chat.completions.create(
        model="x", user="trip", messages=[{"role": "user", "content": "What else?"}]
    )
    assert last.choices[0].message.content == "I know 3: I like tea; And quiet rooms"
    for other in ({"user": "work"}, {"extra_headers": {"X-FlowState-Space": "work2"}}):
        alone: Any = api.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Hello"}], **other
        )
        assert alone.choices[0].message.content == "I know 1:"
    by_path = client(server, api.api_key, "/v1/spaces/trip")
    there = by_path.chat.completions.create(model="x", messages=[{"role": "user", "content": "Still?"}])
    assert there.choices[0].message.content.startswith("I know 4")  # type: ignore[union-attr]


CALLS = step(calls=[("weather", {"city": "Rome"})])
RAINS = step(
    delta=[{"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "Rome: rain"}],
    message="It rains in Rome.",
)


def test_a_client_runs_its_tools_and_another_process_goes_on_days_later(serve: Serve, client: Client) -> None:
    server = serve([CALLS])
    key = server.key("ana")
    asked: Any = [{"role": "user", "content": "Weather in Rome?"}]
    first = client(server, key).chat.completions.create(model="x", user="s", messages=asked, tools=[WEATHER])
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    call: Any = choice.message.tool_calls[0]  # type: ignore[index]
    assert (call.id, call.function.name, call.function.arguments) == (
        "call_r1_t1",
        "weather",
        '{"city": "Rome"}',
    )
    server.stop()
    later = serve([RAINS])
    result: Any = [{"role": "tool", "tool_call_id": call.id, "content": "rain all day"}]
    done = client(later, key).chat.completions.create(model="x", user="s", messages=result, tools=[WEATHER])
    assert done.choices[0].message.content == "It rains in Rome."
    again = client(later, key).chat.completions.create(model="x", user="s", messages=result, tools=[WEATHER])
    assert again.choices[0].message.content == "It rains in Rome.", "brought twice, the reply is the same"


def test_the_server_runs_its_own_tools_and_never_twice(serve: Serve, client: Client) -> None:
    ran: list[str] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        ran.append(f"paid {amount}")
        return ran[-1]

    server = serve([step(calls=[("pay", {"amount": 7})]), step(message="Paid.")], tools=[pay])
    api = client(server)
    body: Any = {"model": "x", "messages": [{"role": "user", "content": "Pay 7"}]}
    headers = {"Idempotency-Key": "k1"}
    assert api.chat.completions.create(**body, extra_headers=headers).choices[0].message.content == "Paid."
    assert api.chat.completions.create(**body, extra_headers=headers).choices[0].message.content == "Paid."
    assert ran == ["paid 7"]


def test_a_stream_brings_the_reply_in_pieces(serve: Serve, client: Client) -> None:
    reply = "It rains in Rome, and it will go on raining for the rest of the week, with a cold wind."
    server = serve([step(message=reply), CALLS])
    api = client(server)
    chunks = list(
        api.chat.completions.create(
            model="x",
            messages=[{"role": "user", "content": "Weather?"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    pieces = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert "".join(pieces) == reply
    assert len(pieces) > 1
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    calls = list(
        api.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "And now?"}], tools=[WEATHER], stream=True
        )
    )
    called: Any = [c.choices[0].delta.tool_calls for c in calls if c.choices[0].delta.tool_calls]
    assert called[0][0].function.name == "weather"
    assert calls[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("message", "said", "rest"),
    [
        ("Hello there", "", "Hello there"),
        ("Hello there", "Hello", " there"),
        ("Hello there", "Hello there", ""),
        ("Hello there", "Hello there \n", ""),
        ("Hello there", "  Hello", " there"),
        ("Hello there", "Good", "Hello there"),
    ],
)
def test_nothing_is_streamed_twice(message: str, said: str, rest: str) -> None:
    assert unsaid(message, said) == rest


async def test_the_async_client_streams_too(serve: Serve) -> None:
    server = serve([step(message="Good morning to you, whoever you are.")])
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key("ana")) as api:
        stream = await api.chat.completions.create(
            model="x", messages=[{"role": "user", "content": "Hello"}], stream=True
        )
        said = [c.choices[0].delta.content or "" async for c in stream]
    assert "".join(said) == "Good morning to you, whoever you are."


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, 400, "nothing new"),
        ({"messages": [{"role": "user", "content": ""}]}, 400, "nothing new"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, 400, "n:"),
        ({"messages": [{"role": "user", "content": "x"}], "temperature": 9}, 400, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}], "user": "a\u0000b"}, 400, "space name"),
        ({"messages": [{"role": "user", "content": "x"}], "user": "b" * 300}, 400, "bytes"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "call_r9_t9", "content": "x"}]},
            400,
            "nothing waits",
        ),
        (
            {"messages": [{"role": "tool", "tool_call_id": "what", "content": "x"}]},
            400,
            "none of this server's",
        ),
        (
            {
                "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "function", "function": {"name": "a b"}}],
            },
            400,
            "a b",
        ),
    ],
)
def test_bad_bodies_are_told_in_openais_shape(body: Any, status: int, said: str, serve: Serve) -> None:
    server = serve([])
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json=body,
        headers={"Authorization": f"Bearer {server.key('ana')}"},
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


def test_keys_scopes_and_limits(serve: Serve, client: Client) -> None:
    server = serve(lambda prompt: step(message="hello"), limits=Limits(max_body_bytes=500))
    ask: Any = {"model": "x", "messages": [{"role": "user", "content": "Hello"}]}
    with pytest.raises(openai.AuthenticationError):
        client(server, "fs-wrong").chat.completions.create(**ask)
    with pytest.raises(openai.PermissionDeniedError):
        client(server, server.key("ana", "read")).chat.completions.create(**ask)
    assert client(server, server.key("ana", "read")).models.list().data[0].id == "script"
    with pytest.raises(openai.APIStatusError) as large:
        client(server).chat.completions.create(model="x", messages=[{"role": "user", "content": "x" * 600}])
    assert large.value.status_code == 413
    limited = client(server, server.key("limited", requests_per_minute=2))
    for _ in range(2):
        limited.chat.completions.create(**ask)
    with pytest.raises(openai.RateLimitError) as rate:
        limited.chat.completions.create(**ask)
    assert 0 < int(rate.value.response.headers["retry-after"]) <= 60
    poor = client(server, server.key("poor", tokens_per_day=10))
    poor.chat.completions.create(**ask)
    with pytest.raises(openai.RateLimitError, match="tokens a day"):
        poor.chat.completions.create(**ask)


def test_a_foreign_space_and_one_that_is_not_there_look_the_same(serve: Serve, client: Client) -> None:
    server = serve(lambda prompt: step(message="hello"))
    mine, theirs = server.key("ana"), server.key("bob")
    ask: Any = {"model": "x", "messages": [{"role": "user", "content": "Hello"}]}
    client(server, mine).chat.completions.create(**ask, user="secret")
    seen = []
    for space in ("ana~secret", "ana~nothing", "nobody~secret"):
        with pytest.raises(openai.NotFoundError) as error:
            client(server, theirs).chat.completions.create(**ask, extra_headers={"X-FlowState-Space": space})
        seen.append(str(error.value).replace(space, "SPACE"))
    assert len(set(seen)) == 1
    tenants = {t.name: t for t in server.tenants.all()}
    server.tenants.share(tenants["ana"], "secret", tenants["bob"], may_write=True)
    shared = client(server, theirs).chat.completions.create(
        **ask, extra_headers={"X-FlowState-Space": "ana~secret"}
    )
    assert shared.choices[0].message.content == "hello"
    server.tenants.share(tenants["ana"], "secret", tenants["bob"], may_write=False)
    with pytest.raises(openai.NotFoundError):
        client(server, theirs).chat.completions.create(
            **ask, extra_headers={"X-FlowState-Space": "ana~secret"}
        )


def test_health_and_readiness_need_no_key(serve: Serve, client: Client) -> None:
    server = serve([])
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    assert httpx.get(f"{server.url}/ready").status_code == 200
    server.service.admission.draining = True
    assert httpx.get(f"{server.url}/ready").status_code == 503
    with pytest.raises(openai.InternalServerError, match="shutting down"):
        client(server).chat.completions.create(model="x", messages=[{"role": "user", "content": "x"}])
