"""All around the endpoints: routes, keys, health, metrics, other origins."""

import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_protocol.records import GenerationDefaults
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
