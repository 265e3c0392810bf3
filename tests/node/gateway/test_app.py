"""All around the endpoints: routes, keys, health, metrics, other origins."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node.gateway.api_errors import internal, of_failure
from cosine_node.gateway.app import FRESH_S, LOOK_UP_TIMEOUT_S, RETRY_S, VerifierWatch
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    LocalProtocolError,
    PeerLost,
    PromptRefused,
    PromptTooLong,
    UsageError,
)
from cosine_protocol.records import GenerationDefaults, NodeRecord
from tests.node.gateway.asgi import Gateway, Reply, call, gateway
from tests.node.gateway.letters import MODEL, PROMPT

ORIGIN = {"Origin": "https://page.example"}
BEARER = {"Authorization": "Bearer sesame"}


def with_gateway(use: Callable[[Gateway], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with gateway(**options) as running:
            return await use(running)

    return run_virtual(run())


def asked(
    method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, **options: Any
) -> Reply:
    reply = with_gateway(lambda running: call(running.app, method, path, body, headers=headers), **options)
    assert isinstance(reply, Reply)
    return reply


def test_the_gateway_brings_no_machine_learning_and_no_transport() -> None:
    heavy = {"torch", "transformers", "hivemind", "libp2p"}
    code = f"import cosine_node.gateway.server, sys; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/embeddings", 404, "not_found"),
        ("GET", "/nothing", 404, "not_found"),
        ("GET", "/v1/models/gpt-5", 404, "model_not_found"),
    ],
)
def test_what_is_not_there_is_refused_in_one_shape(method: str, path: str, status: int, code: str) -> None:
    reply = asked(method, path)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (status, code, "invalid_request_error")
    assert ("allow" in reply.headers) is (status == 405)


def test_bodies_that_are_no_json_are_refused() -> None:
    reply = asked("POST", "/v1/completions", b"{")
    assert (reply.status, reply.error["code"]) == (400, "invalid_json")
    assert asked("POST", "/v1/completions", bytes(5 << 20)).status == 413


def test_keys_guard_the_api_and_nothing_else() -> None:
    body = {"model": MODEL, "prompt": PROMPT}
    for headers in (None, {"Authorization": "Bearer wrong"}):
        reply = asked("POST", "/v1/completions", body, headers=headers, api_keys=("sesame",))
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
    assert asked("POST", "/v1/completions", body, headers=BEARER, api_keys=("sesame",)).status == 200
    assert [asked("GET", path, api_keys=("sesame",)).status for path in ("/v1/models", "/health", "/metrics")] == [
        401,
        200,
        200,
    ]


def test_health_is_whether_somebody_serves() -> None:
    healthy = asked("GET", "/health", verifiers=2)
    assert (healthy.status, healthy.json) == (200, {"status": "ok", "verifiers": 2})
    alone = asked("GET", "/health", verifiers=0)
    assert (alone.status, alone.json["status"]) == (503, "unavailable")
    assert "No verifier serves" in alone.json["reason"]


def test_models_are_listed_even_if_nobody_serves_them() -> None:
    listed = asked("GET", "/v1/models", verifiers=0).json
    assert [(model["id"], model["root"], model["max_model_len"]) for model in listed["data"]] == [
        (MODEL, MODEL, None),
        ("cosine", MODEL, None),
    ]


def test_a_model_is_listed_with_the_defaults_of_its_own() -> None:
    published = GenerationDefaults(temperature=0.6, top_k=20, not_honoured=("num_beams",))
    nothing: dict[str, Any] = {"options": {}, "not_honoured": []}
    listed = asked("GET", f"/v1/models/{MODEL}", verifier={"published": published}).json
    assert listed["generation_config"] == {
        "options": {"temperature": 0.6, "top_k": 20},
        "not_honoured": ["num_beams"],
    }
    without: dict[str, Any] = {"verifier": {"published": published}, "client": {"generation_config": "none"}}
    assert asked("GET", f"/v1/models/{MODEL}", **without).json["generation_config"] == nothing
    assert asked("GET", f"/v1/models/{MODEL}").json["generation_config"] == nothing


def test_metrics_count_what_was_generated() -> None:
    async def use(running: Gateway) -> str:
        await running.complete(PROMPT, max_tokens=12)
        await running.complete(PROMPT, temperature=-1)
        return (await running.get("/metrics")).body.decode()

    lines = with_gateway(use).splitlines()
    for line in (
        f'cosine:generation_tokens_total{{model_name="{MODEL}"}} 12.0',
        f'cosine:prompt_tokens_total{{model_name="{MODEL}"}} {len(PROMPT)}.0',
        f'cosine:request_success_total{{finished_reason="length",model_name="{MODEL}"}} 1.0',
        f'cosine:num_requests_running{{model_name="{MODEL}"}} 0.0',
        'cosine:http_responses_total{status="200"} 1.0',
        'cosine:http_responses_total{status="400"} 1.0',
    ):
        assert line in lines


def test_other_origins_are_let_in_only_where_they_are_named() -> None:
    assert "access-control-allow-origin" not in asked("GET", "/health", headers=ORIGIN).headers
    allowed: dict[str, Any] = {"cors_origins": (ORIGIN["Origin"],), "api_keys": ("sesame",)}
    named = asked("GET", "/v1/models", headers=ORIGIN | BEARER, **allowed)
    assert named.headers["access-control-allow-origin"] == ORIGIN["Origin"]
    other = asked("GET", "/v1/models", headers={"Origin": "https://other.example"} | BEARER, **allowed)
    assert "access-control-allow-origin" not in other.headers
    preflight = ORIGIN | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
    }
    reply = asked("OPTIONS", "/v1/chat/completions", headers=preflight, **allowed)
    assert reply.status == 200
    assert "x-stainless-os" in reply.headers["access-control-allow-headers"]


def test_a_refusal_can_be_read_by_a_page() -> None:
    reply = asked("GET", "/v1/models", headers=ORIGIN, cors_origins=(ORIGIN["Origin"],), api_keys=("sesame",))
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (401, ORIGIN["Origin"])


def test_a_path_cannot_forge_a_line_of_the_log() -> None:
    async def use(running: Gateway) -> dict[str, object]:
        await running.get("/v1/\nGET /v1/ 200")
        return running.told[0]

    assert with_gateway(use)["path"] == "/v1/%0AGET%20/v1/%20200"


def test_every_response_has_an_id() -> None:
    assert asked("GET", "/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert len(asked("GET", "/health", headers={"X-Request-Id": "not mine"}).headers["x-request-id"]) == 24
    assert asked("GET", "/nothing").headers["x-request-id"]


class Network:
    """Answers a look-up after a while with as many verifiers as it is told to have."""

    def __init__(self, *, verifiers: int, delay_s: float = 0.5) -> None:
        self.verifiers = verifiers
        self.delay_s = delay_s
        self.look_ups = 0

    async def find_verifiers(self) -> Sequence[NodeRecord]:
        self.look_ups += 1
        await asyncio.sleep(self.delay_s)
        if not self.verifiers:
            raise GenerationFailed("No verifier serves this.")
        return [NodeRecord.__new__(NodeRecord)] * self.verifiers


async def glance(watch: VerifierWatch) -> tuple[int, str]:
    found, reason = await watch.look()
    return len(found), reason


def test_what_was_found_is_remembered_for_a_while() -> None:
    async def run() -> None:
        network = Network(verifiers=2)
        watch = VerifierWatch(network.find_verifiers)
        seen = await asyncio.gather(*(glance(watch) for _ in range(5)))
        assert (seen, network.look_ups) == ([(2, "")] * 5, 1)
        network.verifiers = 0
        assert await glance(watch) == (2, "")
        await asyncio.sleep(FRESH_S)
        assert await glance(watch) == (0, "No verifier serves this.")

    run_virtual(run())


def test_a_network_that_had_none_is_asked_again_soon() -> None:
    async def run() -> None:
        network = Network(verifiers=0)
        watch = VerifierWatch(network.find_verifiers)
        for _ in range(3):
            assert await glance(watch) == (0, "No verifier serves this.")
        assert network.look_ups == 1
        network.verifiers = 1
        await asyncio.sleep(RETRY_S)
        assert (await glance(watch), network.look_ups) == ((1, ""), 2)

    run_virtual(run())


def test_a_silent_network_is_not_waited_for() -> None:
    async def run() -> float:
        watch = VerifierWatch(Network(verifiers=1, delay_s=1e6).find_verifiers)
        found, reason = await watch.look()
        assert (found, "did not answer" in reason) == ((), True)
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == pytest.approx(LOOK_UP_TIMEOUT_S)


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (PromptTooLong("long"), 400, "context_length_exceeded", "prompt"),
        (PromptRefused("bad"), 400, "invalid_value", "prompt"),
        (GenerationTimedOut("slow"), 504, "timeout", None),
        (GenerationFailed("nobody"), 503, "no_verifier", None),
        (PeerLost("peer", "gone"), 503, "no_verifier", None),
        (UsageError("remove /home/somebody/pins.json"), 503, "target_unavailable", None),
        (LocalProtocolError("a bug in /home/somebody"), 503, "target_unavailable", None),
    ],
)
def test_failures_have_a_status_and_a_code(error: CosineError, status: int, code: str, param: str | None) -> None:
    problem = of_failure(error, param="prompt")
    assert (problem.status, problem.code, problem.param) == (status, code, param)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert problem.body == {"error": {"message": problem.message, "type": kind, "param": param, "code": code}}
    assert ("retry-after" in {name.lower() for name in problem.headers}) is (status == 503)


def test_what_is_the_operators_stays_there() -> None:
    assert "somebody" not in of_failure(UsageError("remove /home/somebody/pins.json"), param="prompt").message
    assert internal().status == 500
