"""Calls an ASGI application in virtual time, as a server would."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.engine.curve import CostCurve
from cosine_node.gateway.app import GatewayOptions, make_app
from tests.node.gateway.letters import MODEL, letter_client, letter_swarm


@dataclass(slots=True)
class Reply:
    """A response; `status` is 0 if there was none."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error of a body that is nothing else."""
        content = self.json
        assert set(content) == {"error"} and set(content["error"]) == {"message", "type", "param", "code"}
        error: dict[str, Any] = content["error"]
        return error

    @property
    def events(self) -> list[Any]:
        """The data of server-sent events; [DONE] as it is."""
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == "" and all(line.startswith("data: ") for line in lines)
        data = [line.removeprefix("data: ") for line in lines]
        return [each if each == "[DONE]" else json.loads(each) for each in data]


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    hang_up: asyncio.Event | None = None,
) -> Reply:
    """One request. `body` is sent as JSON unless it is bytes; the client leaves when `hang_up` is set."""
    reply = Reply()
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    inbox: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]
    left = hang_up or asyncio.Event()

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            assert reply.status and not reply.is_complete
            reply.body += message["body"]
            reply.is_complete = not message.get("more_body", False)

    given = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "server": ("gateway", 80),
        "headers": [*([] if "host" in (headers or {}) else [(b"host", b"localhost:8000")]), *given],
    }
    await app(scope, receive, send)
    return reply


@dataclass(slots=True)
class Gateway:
    """An application over a swarm of letters, what it has told, and what ends it."""

    app: ASGIApp
    swarm: SimulatedSwarm
    closing: asyncio.Event
    told: list[dict[str, object]]

    async def post(self, path: str, body: Any, **options: Any) -> Reply:
        return await call(self.app, "POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Reply:
        return await call(self.app, "GET", path, **options)

    async def complete(self, prompt: str, **options: Any) -> Reply:
        """Ask for a greedy completion."""
        hang_up = options.pop("hang_up", None)
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, **options}
        return await self.post("/v1/completions", body, hang_up=hang_up)


@asynccontextmanager
async def gateway(
    *,
    verifiers: int = 1,
    curve: CostCurve = VERIFY_CURVE,
    client: Mapping[str, Any] | None = None,
    verifier: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Gateway]:
    """A gateway in virtual time; `options` are fields of `GatewayOptions`."""
    told: list[dict[str, object]] = []
    closing = asyncio.Event()

    def emit(event: str, fields: dict[str, object]) -> None:
        assert event == "request"
        told.append(fields)

    async with letter_swarm(curve=curve, verifiers=verifiers, **(verifier or {})) as swarm:
        source = await letter_client(swarm, **(client or {}))
        settings = GatewayOptions(model_name=MODEL, **options)
        yield Gateway(
            make_app(source, settings, emit=emit, closing=closing, unix_s=lambda: 7.0), swarm, closing, told
        )
