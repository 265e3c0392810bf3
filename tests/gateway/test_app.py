"""The gateway's application: routes, keys, hosts, origins, health, metrics, logs and errors."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_gateway.api_errors import internal, of_failure
from cosine_gateway.http.middleware import REQUEST_ID, is_own_name, key_digest, matched_key, request_id
from cosine_gateway.http.models import FRESH_S, LOOK_UP_TIMEOUT_S, RETRY_S, VerifierWatch
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    LocalProtocolError,
    OptionRefused,
    PeerLost,
    PromptRefused,
    PromptTooLong,
    UsageError,
)
from cosine_protocol.records import GenerationDefaults, NodeRecord
from tests.gateway.gateways import MODEL, PROMPT, Gateway, asked, call, in_gateway, with_gateway
from tests.scenes import in_virtual_time

BODY = {"model": MODEL, "prompt": PROMPT, "max_tokens": 1}
ORIGIN = {"Origin": "https://page.example"}
BEARER = {"Authorization": "Bearer sesame"}


@in_gateway()
async def test_what_is_not_there_is_refused_in_one_shape(running: Gateway) -> None:
    missing = (
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/embeddings", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/models/gpt-5", 404, "model_not_found"),
    )
    for method, path, status, code in missing:
        reply = await call(running.app, method, path)
        found = (reply.status, reply.error["code"], reply.error["type"])
        assert found == (status, code, "invalid_request_error")
        assert ("allow" in reply.headers) is (status == 405)


@in_gateway(api_keys=("sesame",))
async def test_keys_guard_the_api_and_nothing_else(running: Gateway) -> None:
    statuses = {path: (await running.get(path)).status for path in ("/v1/models", "/health", "/metrics")}
    assert statuses == {"/v1/models": 401, "/health": 200, "/metrics": 200}
    wrong = await running.get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert (wrong.status, wrong.error["code"], wrong.headers["www-authenticate"]) == (
        401,
        "invalid_api_key",
        "Bearer",
    )
    assert (await running.get("/v1/models", headers=BEARER)).status == 200


KNOWN = [key_digest(key) for key in ("one", "two")]


def test_a_key_is_found_whatever_its_spelling_and_told_from_others() -> None:
    assert matched_key(KNOWN, "Bearer one") == KNOWN[0]
    assert matched_key(KNOWN, "bearer two") == matched_key(KNOWN, "BEARER  two ") == KNOWN[1]
    for header in ("", "one", "Basic one", "Bearer", "Bearer ", "Bearer three", "Bearer one two"):
        assert matched_key(KNOWN, header) is None
        assert matched_key([], header) == b""
        assert matched_key(KNOWN, header, "two") == KNOWN[1]
        assert matched_key(KNOWN, header, "three") is matched_key(KNOWN, header, "Bearer one") is None


@given(st.text(st.characters(max_codepoint=255)))
def test_any_header_can_be_judged(header: str) -> None:
    assert matched_key(KNOWN, header) is None
    assert matched_key([], header) == b""
    assert is_own_name(header, ()) in (True, False)
    made = request_id(header)
    assert REQUEST_ID.fullmatch(made)
    assert (made == header) is bool(REQUEST_ID.fullmatch(header))
    assert made == header or made != request_id(header)


PRIVATE: Final = (
    *("localhost", "LOCALHOST:8000", "localhost.:8000", "app.localhost", "127.0.0.1:8000", "[::1]:8000", "0.0.0.0"),
    *("192.168.1.5", "[fe80::1%eth0]:8000", "mybox.local", "nas.home.arpa:8000", "gateway", "my_service:8000"),
    *("host.docker.internal:8000", "gateway.docker.internal", "host.containers.internal", "host.lima.internal"),
)
STRANGE: Final = (
    *("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"),
    "evil.local.example",
    *("notlocal.lan", "internal.com", "xlocalhost.com", "", ":8000", ".", ".local", "[", "a b", "a@b.example"),
)


def test_addresses_private_names_and_those_of_the_operator_are_the_gateways_own() -> None:
    """Foreign names, as after DNS rebinding, are refused."""
    assert [host for host in PRIVATE if not is_own_name(host, ())] == []
    assert [host for host in STRANGE if is_own_name(host, ("gateway.lan",))] == []
    reply = asked("POST", "/v1/completions", BODY, headers={"host": "evil.example"})
    assert (reply.status, reply.error["code"]) == (421, "unknown_host")
    assert "--host-name" in reply.error["message"]
    named = asked("GET", "/v1/models", headers={"host": "Gateway.lan:8000"}, host_names=("gateway.LAN",))
    assert named.status == 200
    # Metrics are protected too; probes use an address or a private name.
    for host, status in (("gateway", 200), ("10.0.0.7:8000", 200), ("evil.example", 421)):
        assert {asked("GET", path, headers={"host": host}).status for path in ("/health", "/metrics")} == {status}


def test_a_body_with_two_lengths_is_refused() -> None:
    both = {"content-length": "2", "transfer-encoding": "chunked"}
    for path in ("/health", "/v1/completions"):
        reply = asked("GET" if path == "/health" else "POST", path, headers=both)
        assert (reply.status, reply.error["code"], reply.headers["connection"]) == (400, "two_lengths", "close")


def test_pages_from_elsewhere_are_refused_unless_the_operator_allows_them() -> None:
    async def statuses(running: Gateway, *origins: str) -> set[int]:
        return {(await running.post("/v1/completions", BODY, headers={"origin": each})).status for each in origins}

    def of(*origins: str, **options: Any) -> set[int]:
        found: set[int] = with_gateway(lambda running: statuses(running, *origins), **options)
        return found

    strange = ("https://evil.example", "null", "file://", "http://localhost.evil.example", "http://evil.local")
    assert of(*strange, "http://[") == {403}
    local = ("http://localhost:8000", "http://localhost:3000", "https://app.localhost", "http://127.0.0.1:9999")
    assert of(*local, "http://[::1]:9999", "vscode-webview://0abc") == {200}
    assert (
        of(ORIGIN["Origin"], cors_origins=(ORIGIN["Origin"],)) == of(ORIGIN["Origin"], cors_origins=("*",)) == {200}
    )


def test_local_pages_may_ask_and_read_and_others_only_where_they_are_named() -> None:
    def allowed(path: str, headers: dict[str, str], **options: Any) -> str | None:
        return asked("GET", path, headers=headers, **options).headers.get("access-control-allow-origin")

    options: dict[str, Any] = {"cors_origins": (ORIGIN["Origin"],), "api_keys": ("sesame",)}
    local = {"Origin": "http://localhost:3000"}
    assert (allowed("/health", ORIGIN), allowed("/health", local)) == (None, local["Origin"])
    assert allowed("/v1/models", ORIGIN | BEARER, **options) == ORIGIN["Origin"]
    # A page can read a refusal.
    assert allowed("/v1/models", ORIGIN, **options) == ORIGIN["Origin"]
    assert allowed("/v1/models", {"Origin": "https://other.example"} | BEARER, **options) is None
    preflight = ORIGIN | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
        "Access-Control-Request-Private-Network": "true",
    }
    for origin in (ORIGIN, local):
        reply = asked("OPTIONS", "/v1/chat/completions", headers=preflight | origin, **options)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, origin["Origin"])
        assert "x-stainless-os" in reply.headers["access-control-allow-headers"]
        assert reply.headers["access-control-allow-private-network"] == "true"
    stranger = preflight | {"Origin": "https://other.example"}
    assert asked("OPTIONS", "/v1/chat/completions", headers=stranger, **options).status == 400


def test_health_is_whether_somebody_serves_and_models_are_listed_anyway() -> None:
    healthy = asked("GET", "/health", verifiers=2)
    assert (healthy.status, healthy.json) == (200, {"status": "ok", "verifiers": 2})
    alone = asked("GET", "/health", verifiers=0)
    assert (alone.status, alone.json["status"]) == (503, "unavailable")
    assert "No verifier serves" in alone.json["reason"]
    listed = asked("GET", "/v1/models", verifiers=0).json
    assert [(model["id"], model["root"], model["max_model_len"]) for model in listed["data"]] == [
        (MODEL, MODEL, None),
        ("cosine", MODEL, None),
    ]


@in_gateway(verifiers=2)
async def test_health_counts_the_verifiers_that_answer(running: Gateway) -> None:
    replies = []
    for member in running.swarm.members[:2]:
        await member.kill()
        await asyncio.sleep(FRESH_S + 1.0)
        replies.append(await running.get("/health"))
    one, none = replies
    assert (one.status, one.json) == (200, {"status": "ok", "verifiers": 1})
    assert none.status == 503 and "None of 2 announced" in none.json["reason"]


def test_a_model_is_listed_with_the_defaults_of_its_own() -> None:
    published = GenerationDefaults(temperature=0.6, top_k=20, not_honoured=("num_beams",))
    nothing: dict[str, Any] = {"options": {}, "not_honoured": []}
    own = {"options": {"temperature": 0.6, "top_k": 20}, "not_honoured": ["num_beams"]}
    for options, expected in (
        ({"verifier": {"published": published}}, own),
        ({"verifier": {"published": published}, "client": {"generation_config": "none"}}, nothing),
        ({}, nothing),
    ):
        described = asked("GET", f"/v1/models/{MODEL}", **options).json
        assert described["generation_config"] == expected
        assert described["max_model_len"] == described["meta"]["n_ctx_train"] == 4096


@in_gateway()
async def test_metrics_count_tokens_requests_and_responses(running: Gateway) -> None:
    await running.complete(max_tokens=12)
    await running.complete(temperature=-1)
    lines = (await running.get("/metrics")).body.decode().splitlines()
    for line in (
        f'cosine:generation_tokens_total{{model_name="{MODEL}"}} 12.0',
        f'cosine:prompt_tokens_total{{model_name="{MODEL}"}} {len(PROMPT)}.0',
        f'cosine:request_success_total{{finished_reason="length",model_name="{MODEL}"}} 1.0',
        f'cosine:num_requests_running{{model_name="{MODEL}"}} 0.0',
        'cosine:http_responses_total{status="200"} 1.0',
        'cosine:http_responses_total{status="400"} 1.0',
    ):
        assert line in lines


@in_gateway()
async def test_a_path_cannot_forge_a_line_of_the_log(running: Gateway) -> None:
    await running.get("/v1/\nGET /v1/ 200")
    assert running.told[0]["path"] == "/v1/%0AGET%20/v1/%20200"


@dataclass
class Network:
    """A network that answers a look-up after a delay with `verifiers` verifiers."""

    verifiers: int
    delay_s: float = 0.5
    look_ups: int = 0

    async def find_verifiers(self) -> Sequence[NodeRecord]:
        self.look_ups += 1
        await asyncio.sleep(self.delay_s)
        if not self.verifiers:
            raise GenerationFailed("No verifier serves this.")
        return [NodeRecord.__new__(NodeRecord)] * self.verifiers


async def glance(watch: VerifierWatch) -> tuple[int, str]:
    found, reason = await watch.look()
    return len(found), reason


@in_virtual_time
async def test_verifiers_that_were_found_are_remembered_for_a_while_and_none_for_a_moment() -> None:
    network, none = Network(verifiers=2), (0, "No verifier serves this.")
    watch = VerifierWatch(network.find_verifiers)
    seen = await asyncio.gather(*(glance(watch) for _ in range(5)))
    assert (seen, network.look_ups) == ([(2, "")] * 5, 1)
    network.verifiers = 0
    assert await glance(watch) == (2, "")
    await asyncio.sleep(FRESH_S)
    assert [await glance(watch) for _ in range(3)] == [none] * 3
    assert network.look_ups == 2
    network.verifiers = 1
    await asyncio.sleep(RETRY_S)
    assert (await glance(watch), network.look_ups) == ((1, ""), 3)


@in_virtual_time
async def test_a_look_up_in_a_silent_network_times_out() -> None:
    watch = VerifierWatch(Network(verifiers=1, delay_s=1e6).find_verifiers)
    found, reason = await watch.look()
    assert (found, "did not answer" in reason) == ((), True)
    assert asyncio.get_running_loop().time() == pytest.approx(LOOK_UP_TIMEOUT_S)


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (PromptTooLong("long"), 400, "context_length_exceeded", "prompt"),
        (PromptRefused("bad"), 400, "invalid_value", "prompt"),
        (OptionRefused("tools", "no such schema"), 400, "invalid_value", "tools"),
        (GenerationTimedOut("slow"), 504, "timeout", None),
        (GenerationFailed("nobody"), 503, "no_verifier", None),
        (PeerLost("peer", "gone"), 503, "no_verifier", None),
        (UsageError("remove /home/somebody/pins.json"), 503, "target_unavailable", None),
        (LocalProtocolError("a bug in /home/somebody"), 503, "target_unavailable", None),
    ],
)
def test_failures_have_a_status_and_a_code_and_what_is_the_operators_stays_there(
    error: CosineError, status: int, code: str, param: str | None
) -> None:
    problem = of_failure(error, param="prompt")
    assert (problem.status, problem.code, problem.param) == (status, code, param)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert problem.body == {"error": {"message": problem.message, "type": kind, "param": param, "code": code}}
    assert ("retry-after" in {name.lower() for name in problem.headers}) is (status == 503)
    assert "somebody" not in problem.message
    assert internal().status == 500
