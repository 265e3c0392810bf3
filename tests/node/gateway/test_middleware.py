"""What every request passes: an id, a key, and a check of the names under which the gateway is asked."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.gateway.middleware import REQUEST_ID, KeyRing, is_own_name, name_of, request_id
from tests.node.gateway.asgi import Reply, gateway
from tests.node.gateway.letters import MODEL

RING = KeyRing(["one", "two"])


@pytest.mark.parametrize("header", ["Bearer one", "bearer two", "BEARER  two "])
def test_keys_that_fit(header: str) -> None:
    assert RING.matched(header)


def test_keys_are_told_apart() -> None:
    assert len({RING.matched("Bearer one"), RING.matched("Bearer two")}) == 2


@pytest.mark.parametrize("header", ["", "one", "Basic one", "Bearer", "Bearer ", "Bearer three", "Bearer one two"])
def test_keys_that_do_not(header: str) -> None:
    assert RING.matched(header) is None


@given(st.text())
def test_without_keys_everybody_may_come(header: str) -> None:
    assert KeyRing([]).matched(header) == b""


@given(st.text(st.characters(max_codepoint=255)))
def test_any_header_can_be_judged(header: str) -> None:
    assert RING.matched(header) is None


@pytest.mark.parametrize("given_id", ["a", "req-1:2.3_4", "x" * 128])
def test_a_sane_id_is_kept(given_id: str) -> None:
    assert request_id(given_id) == given_id


@given(st.text().filter(lambda text: not REQUEST_ID.fullmatch(text)))
def test_any_other_is_replaced(given_id: str) -> None:
    made = request_id(given_id)
    assert REQUEST_ID.fullmatch(made)
    assert made != request_id(given_id)


def asked(headers: dict[str, str], **options: Any) -> Reply:
    async def run() -> Reply:
        async with gateway(**options) as running:
            body = {"model": MODEL, "prompt": "01", "max_tokens": 1}
            return await running.post("/v1/completions", body, headers=headers)

    return run_virtual(run())


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:8000", "192.168.1.5"])
def test_localhost_and_addresses_are_the_gateways_own(host: str) -> None:
    assert asked({"host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[", "a b"])
def test_a_name_that_a_page_lets_point_here_is_refused(host: str) -> None:
    reply = asked({"host": host})
    assert (reply.status, reply.error["code"]) == (421, "unknown_host")
    assert "--host-name" in reply.error["message"]


def test_an_operator_names_further_ones() -> None:
    assert asked({"host": "Gateway.lan:8000"}, host_names=("gateway.lan",)).status == 200


def test_probes_come_under_any_name() -> None:
    async def run() -> list[int]:
        async with gateway() as running:
            paths = ("/health", "/metrics")
            return [(await running.get(path, headers={"host": "gateway"})).status for path in paths]

    assert run_virtual(run()) == [200, 200]


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:9999", "http://["])
def test_pages_from_elsewhere_are_refused(origin: str) -> None:
    reply = asked({"origin": origin})
    assert (reply.status, reply.error["code"]) == (403, "unknown_origin")


@pytest.mark.parametrize("options", [{"cors_origins": ("https://page.example",)}, {"cors_origins": ("*",)}])
def test_pages_that_the_operator_allows_may_ask(options: dict[str, Any]) -> None:
    assert asked({"origin": "https://page.example"}, **options).status == 200


def test_a_page_of_the_gateway_itself_may_ask() -> None:
    assert asked({"origin": "http://localhost:8000"}).status == 200


@given(st.text())
def test_any_host_can_be_judged(host: str) -> None:
    assert is_own_name(name_of(host), ()) in (True, False)
