"""Tenants, keys, shares, erasure over HTTP: who may what, and that nobody reaches what is another's."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from flowstate_local.server.tenants import Tenants
from flowstate_local.testing import step
from flowstate_local.tools import tool
from tests.server.conftest import Running

Serve = Callable[..., Running]


@tool(idempotent=True)
def read_page(name: str) -> str:
    """Read a page."""
    return f"All of {name}: SWORDFISH"


def story(prompt: str) -> Any:
    """Every request reads a page and keeps a node."""
    turn = prompt.rpartition("REQUEST")[2]
    n = prompt.rpartition("INDEX\n")[2].partition("REQUEST")[0].count(" knowledge: ") + 1
    if "called t" not in turn:
        return step(calls=[("read_page", {"name": "terms"})])
    return step(
        delta=[
            {"type": "knowledge", "id": f"n{n}", "evidence": [f"t{n}"], "summary": "The word is SWORDFISH"}
        ],
        message="SWORDFISH it is.",
    )


class Api:
    """Speaks to a server with one key."""

    def __init__(self, server: Running, key: str) -> None:
        self.http = httpx.Client(base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {key}"})

    def ask(self, text: str, space: str = "trip") -> httpx.Response:
        body = {"model": "x", "messages": [{"role": "user", "content": text}]}
        return self.http.post("/chat/completions", json=body, headers={"X-FlowState-Space": space})

    def __call__(self, method: str, path: str, expect: int = 200, **kwargs: Any) -> Any:
        answer = self.http.request(method, path, **kwargs)
        assert answer.status_code == expect, (method, path, answer.status_code, answer.text[:300])
        return answer.json() if answer.content else None


@pytest.fixture
def api(serve: Serve) -> Iterator[Callable[..., Api]]:
    made: list[Api] = []
    server = serve(story, tools=[read_page])

    def make(tenant: str, scope: str = "admin", **quota: int) -> Api:
        made.append(Api(server, server.key(tenant, scope, **quota)))
        return made[-1]

    make.server = server  # type: ignore[attr-defined]
    yield make
    for one in made:
        one.http.close()


def test_keys_are_made_rotated_and_revoked(api: Callable[..., Api]) -> None:
    ana = api("ana")
    key = ana("POST", "/keys", 201, json={"scope": "read"})["key"]
    listed = ana("GET", "/keys")
    assert [one["scope"] for one in listed] == ["admin", "read"]
    assert key not in str(listed)
    reader = Api(api.server, key)  # type: ignore[attr-defined]
    assert reader("GET", "/me")["scope"] == "read"
    reader("GET", "/keys", 403)
    fresh = ana("POST", f"/keys/{listed[1]['id']}/rotate", 201, json={"grace_s": 100})["key"]
    assert reader("GET", "/me")["key"] == listed[1]["id"], "the old one is good for a while"
    again = Api(api.server, fresh)  # type: ignore[attr-defined]
    fresh_id = again("GET", "/me")["key"]
    ana("POST", f"/keys/{fresh_id}/rotate", 201, json={})
    again("GET", "/me", 401)
    ana("DELETE", f"/keys/{listed[1]['id']}", 204)
    reader("GET", "/me", 401)
    ana("DELETE", f"/keys/{listed[1]['id']}", 404)
    ana("POST", f"/keys/{listed[1]['id']}/rotate", 404, json={})
    ana("POST", "/keys", 400, json={"scope": "root"})
    ana("POST", "/keys", 400, json={"days": -1})
    for one in (reader, again):
        one.http.close()


def test_the_operator_manages_tenants(api: Callable[..., Api]) -> None:
    server: Running = api.server  # type: ignore[attr-defined]
    operator = Api(server, server.tenants.issue(server.tenants.create("op", is_operator=True), "admin"))
    made = operator("POST", "/tenants", 201, json={"name": "bob", "quota": {"requests_per_minute": 1}})
    bob = Api(server, made["admin_key"])
    assert bob("GET", "/me")["tenant"]["quota"]["requests_per_minute"] == 1
    assert bob.ask("Hello").status_code == 200
    assert bob.ask("Hello").status_code == 429
    operator("PUT", f"/tenants/{made['id']}/quota", json={"tokens_per_day": 10**9})
    assert bob.ask("Hello").status_code == 200
    assert {t["name"]: t["tokens_today"] > 0 for t in operator("GET", "/tenants")} == {
        "bob": True,
        "op": False,
    }
    for method, path in (("GET", "/tenants"), ("POST", "/tenants"), ("DELETE", f"/tenants/{made['id']}")):
        bob(method, path, 403, json={"name": "x"} if method == "POST" else None)
    operator("POST", "/tenants", 400, json={"name": "bob"})
    for bad in ("", "a~b", "a/b", "a\nb", "x" * 101):
        operator("POST", "/tenants", 400, json={"name": bad})
    operator("DELETE", f"/tenants/{operator('GET', '/me')['tenant']['id']}", 400)
    assert any(made["id"] in name for name in server.service.store.spaces())
    operator("DELETE", f"/tenants/{made['id']}", 204)
    assert not any(made["id"] in name for name in server.service.store.spaces())
    bob("GET", "/me", 401)
    operator("DELETE", f"/tenants/{made['id']}", 404)
    for one in (operator, bob):
        one.http.close()


def test_a_space_is_shared_and_taken_back(api: Callable[..., Api]) -> None:
    ana, bob = api("ana"), api("bob")
    ana.ask("Hello")
    guest = bob("GET", "/me")["tenant"]["id"]
    bob("GET", "/spaces/ana~trip", 404)
    ana("PUT", f"/spaces/trip/shares/{guest}", 204, json={})
    assert bob("GET", "/spaces/ana~trip")["nodes"] == 1
    assert bob("GET", "/shared") == [{"space": "ana~trip", "may_write": False}]
    assert ana("GET", "/spaces/trip/shares") == [{"guest": guest, "name": "bob", "may_write": False}]
    assert bob.ask("Hi", "ana~trip").status_code == 404, "to read only"
    ana("PUT", f"/spaces/trip/shares/{guest}", 204, json={"may_write": True})
    assert bob.ask("Hi", "ana~trip").status_code == 200
    assert ana("GET", "/spaces/trip")["nodes"] == 2
    for method, path in (
        ("DELETE", "/spaces/ana~trip"),
        ("POST", "/spaces/ana~trip/erase"),
        ("PUT", f"/spaces/ana~trip/shares/{guest}"),
        ("GET", "/spaces/ana~trip/shares"),
    ):
        bob(method, path, 403, json={} if method in ("POST", "PUT") else None)
    ana("DELETE", f"/spaces/trip/shares/{guest}", 204)
    bob("GET", "/spaces/ana~trip", 404)
    ana("DELETE", f"/spaces/trip/shares/{guest}", 404)
    ana("PUT", "/spaces/trip/shares/0123456789abcdef", 404, json={})
    ana("PUT", f"/spaces/nothing/shares/{guest}", 404, json={})


def test_parts_and_whole_spaces_are_erased(api: Callable[..., Api]) -> None:
    ana, writer = api("ana"), api("ana", "write")
    ana.ask("Tell me the word")
    ana.ask("Once more")
    writer("POST", "/spaces/trip/erase", 403, json={"nodes": ["n1"]})
    writer("DELETE", "/spaces/trip", 403)
    ana("POST", "/spaces/trip/erase", 400, json={"nodes": ["n9"]})
    ana("POST", "/spaces/trip/erase", 400, json={})
    done = ana("POST", "/spaces/trip/erase", json={"requests": ["r1"]})
    assert done == {"nodes": ["n1"], "requests": ["r1"], "evidence": ["t1"]}
    assert ana("GET", "/spaces/trip/nodes/n1")["node"]["summary"] == "[erased]"
    ana("GET", "/spaces/trip/evidence/t1", 404)
    assert ana("POST", "/spaces/trip/verify") == []
    ana("DELETE", "/spaces/trip", 204)
    ana("GET", "/spaces/trip", 404)
    assert ana("GET", "/spaces") == []
    assert ana.ask("Anew").status_code == 200
    assert ana("GET", "/spaces/trip")["version"] == 1


def test_an_export_is_imported_by_somebody_else(api: Callable[..., Api]) -> None:
    ana, bob = api("ana"), api("bob", "write")
    ana.ask("Tell me the word")
    exported = ana.http.get("/spaces/trip/export").content
    done = bob("POST", "/spaces/got/import", 201, content=exported)
    assert (done["requests"], done["nodes"], done["space"]) == (1, 1, "got")
    assert bob("GET", "/spaces/got/nodes")["data"] == ana("GET", "/spaces/trip/nodes")["data"]
    assert bob("POST", "/spaces/got/verify") == []
    bob("POST", "/spaces/got/import", 400, content=exported)
    bob("POST", "/spaces/other/import", 400, content=exported[: len(exported) // 2])
    bob("POST", "/spaces/other/import", 400, content=b"\xff\xfe")
    bob("POST", "/spaces/ana~trip/import", 404, content=exported)
    assert [s["space"] for s in bob("GET", "/spaces")] == ["got"]


def test_bytes_have_a_quota(api: Callable[..., Api]) -> None:
    small = api("small", max_bytes=20_000)
    assert small.ask("Hello").status_code == 200
    exported = small.http.get("/spaces/trip/export").content
    small("POST", "/spaces/more/import", 429, content=exported + b"\n" * 20_000)
    none = api("none", max_bytes=0)
    answer = none.ask("Hello")
    assert answer.status_code == 200, "an empty space takes nothing"
    none.http.close()


def test_tenants_outlive_their_process(tmp_path: Any) -> None:
    first = Tenants(tmp_path / "t.sqlite")
    key = first.issue(first.create("ana"), "admin", days=1)
    first.close()
    later = Tenants(tmp_path / "t.sqlite", clock=lambda: __import__("time").time() + 2 * 86_400)
    assert later.caller(key) is None, "expired"
    later.close()
    again = Tenants(tmp_path / "t.sqlite")
    caller = again.caller(key)
    assert caller is not None
    assert (caller.tenant.name, caller.scope) == ("ana", "admin")
    assert key.encode() not in (tmp_path / "t.sqlite").read_bytes()
    again.close()
