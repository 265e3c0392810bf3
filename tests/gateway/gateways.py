"""Gateways over a swarm of scripted engines whose tokens are letters: in virtual time, and on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from starlette.types import ASGIApp, Message

from cosine_engine.curve import CostCurve
from cosine_gateway.http.app import GatewayOptions, make_app
from cosine_gateway.http.server import listening, serve_app, url_of
from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import VERIFY_CURVE, SimulatedSwarm
from cosine_node.advice.own_machine import OwnMachine
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.options import choice_seed
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.errors import PromptRefused
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.scenes import Scene, Test, as_test, in_virtual_time
from tests.swarm.reference import draft_engine, plain_stream, target_engine

MODEL: Final = "zoo:target"
PROMPT: Final = "01234567"
QUICK: Final = CostCurve(((1, 0.002), (64, 0.002)))
SLOW: Final = CostCurve(((1, 0.05), (64, 0.05)))
HOST: Final = "127.0.0.1"
TIMEOUT_S: Final = 30.0


class ChatLetters(LetterCodec):
    """A codec that renders a chat as the concatenated contents; only the roles user and assistant exist."""

    def render_chat(self, messages: Sequence[Any], **options: Any) -> str:
        if any(message["role"] not in ("user", "assistant") for message in messages):
            raise PromptRefused("The target's chat template refused the messages: no such role.")
        return "".join(message["content"] for message in messages)


@asynccontextmanager
async def letter_swarm(
    *,
    curve: CostCurve = QUICK,
    verifiers: int = 1,
    published: GenerationDefaults | None = None,
    **config: Any,
) -> AsyncIterator[SimulatedSwarm]:
    """Verifiers, and a drafter that is right nine times in ten; `config` is for the verifiers."""
    facts = facts_of(generation_defaults=published)
    async with SimulatedSwarm(one_way_s=0.001, codec=ChatLetters(), facts=facts) as swarm:
        for _ in range(verifiers):
            await swarm.verifier(target_engine(), curve=curve, **config)
        await swarm.drafter(draft_engine(0.9), curve=QUICK)
        yield swarm


async def letter_client(swarm: SimulatedSwarm, **options: Any) -> AsyncClient:
    """The client that all requests share."""
    # Fixed, as the default would depend on the speed of this machine.
    return await swarm.client(**{"coordination": "client", **options})


def text_of(prompt: str, *, tokens: int, temperature: float = 0.0, seed: int = 0, choice: int = 0) -> str:
    """The target's text by plain decoding."""
    sampling = Sampling(temperature=temperature, seed=choice_seed(seed, choice))
    return LetterCodec().decode(plain_stream(prompt, sampling, tokens=tokens))


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
        """The data of server-sent events before [DONE]."""
        *lines, done, end = self.body.decode().split("\n\n")
        assert (done, end) == ("data: [DONE]", "") and all(line.startswith("data: ") for line in lines)
        return [json.loads(line.removeprefix("data: ")) for line in lines]


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

    given = {"host": "localhost:8000", **(headers or {})}
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
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
    }
    await app(scope, receive, send)
    return reply


@dataclass(slots=True)
class Gateway:
    """An application in virtual time, its emitted events, and the event that closes it."""

    app: ASGIApp
    swarm: SimulatedSwarm
    closing: asyncio.Event
    told: list[dict[str, Any]]

    async def post(self, path: str, body: Any, **options: Any) -> Reply:
        return await call(self.app, "POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Reply:
        return await call(self.app, "GET", path, **options)

    async def complete(self, prompt: str = PROMPT, **options: Any) -> Reply:
        """Ask for a greedy completion."""
        given = {name: options.pop(name) for name in ("hang_up", "headers") if name in options}
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, **options}
        return await self.post("/v1/completions", body, **given)


@in_virtual_time
async def with_gateway(
    use: Callable[[Gateway], Awaitable[Any]],
    *,
    verifiers: int = 1,
    curve: CostCurve = VERIFY_CURVE,
    client: Mapping[str, Any] | None = None,
    verifier: Mapping[str, Any] | None = None,
    swarm_of: Callable[..., AbstractAsyncContextManager[SimulatedSwarm]] = letter_swarm,
    **options: Any,
) -> Any:
    """Run `use` with a gateway in virtual time; `options` are fields of `GatewayOptions`."""
    told: list[dict[str, Any]] = []

    def emit(event: str, fields: dict[str, object]) -> None:
        assert event == "request"
        told.append(fields)

    closing = asyncio.Event()
    async with swarm_of(curve=curve, verifiers=verifiers, **(verifier or {})) as swarm:
        source = await letter_client(swarm, **(client or {}))
        settings = GatewayOptions(model_name=MODEL, machine=OwnMachine(), **options)
        app = make_app(source, settings, emit=emit, closing=closing, unix_s=lambda: 7.0)
        return await use(Gateway(app, swarm, closing, told))


def in_gateway(**options: Any) -> Callable[[Scene], Test]:
    """Make a test of a coroutine function whose first argument is a gateway in virtual time."""
    return as_test(lambda scene: with_gateway(scene, **options), given=1)


def asked(
    method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, **options: Any
) -> Reply:
    """The reply of a new gateway to one request."""
    reply = with_gateway(lambda running: call(running.app, method, path, body, headers=headers), **options)
    assert isinstance(reply, Reply)
    return reply


@dataclass(slots=True)
class ServedGateway:
    """A gateway on a socket: its URL and its loop."""

    url: str
    loop: asyncio.AbstractEventLoop
    swarm: SimulatedSwarm
    stop: asyncio.Event

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def ask_to_stop(self) -> None:
        """As SIGTERM does."""
        self.loop.call_soon_threadsafe(self.stop.set)


@contextmanager
def served(
    *,
    swarm_of: Callable[..., AbstractAsyncContextManager[SimulatedSwarm]] = letter_swarm,
    curve: CostCurve = QUICK,
    drain_s: float = 5.0,
    **options: Any,
) -> Iterator[ServedGateway]:
    """A gateway on a socket in its own thread; `options` are fields of `GatewayOptions`."""
    ready: Future[ServedGateway] = Future()

    async def serve() -> None:
        place, closing = listening(HOST, 0), asyncio.Event()
        async with swarm_of(curve=curve) as swarm:
            loop = asyncio.get_running_loop()
            gateway = ServedGateway(url_of(place, HOST), loop, swarm, asyncio.Event())
            # With a real clock, drafters of scripted models would not pay off.
            always = {**STRATEGIES, "cosine": replace(STRATEGIES["cosine"], drafter_counts=())}
            client = await letter_client(swarm, strategies=always)
            settings = GatewayOptions(model_name=MODEL, machine=OwnMachine(), **options)
            app = make_app(client, settings, emit=lambda event, fields: None, closing=closing)
            await serve_app(
                app,
                place,
                stop=gateway.stop,
                closing=closing,
                on_ready=lambda: ready.set_result(gateway),
                drain_s=drain_s,
            )

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(asyncio.run, serve())
        first: list[Future[Any]] = [ready, running]
        wait(first, TIMEOUT_S, FIRST_COMPLETED)
        if running.done():
            running.result()
        gateway = ready.result(0)
        try:
            yield gateway
        finally:
            if not running.done():
                gateway.ask_to_stop()
            running.result(TIMEOUT_S)
