"""The verifiers that serve the target now: the list of models, and the health of the gateway."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cosine_gateway.body import Json
from cosine_gateway.endpoint import Service, no_such_model
from cosine_gateway.reply import own_config
from cosine_gateway.text_options import CHAT_DEFAULTS
from cosine_p2p.client import AsyncClient
from cosine_p2p.request.model_defaults import apply_defaults, default_sampling
from cosine_p2p.survey import Surveyor
from cosine_protocol.errors import CosineError, GenerationFailed
from cosine_protocol.records import NodeRecord

# Probes come every few seconds, and each look-up asks several peers: a compromise between freshness and traffic.
FRESH_S: Final = 15.0
RETRY_S: Final = 2.0
LOOK_UP_TIMEOUT_S: Final = 6.0
"""Less than the 10 s after which most load balancers give up a probe."""
NODE_ANSWER_S: Final = 3.0
"""The timeout for the status of a verifier: half of a look-up's."""


class VerifierWatch:
    """Caches found verifiers for `FRESH_S`, and their absence for `RETRY_S`.

    `find_verifiers` may raise a `CosineError`.
    """

    def __init__(self, find_verifiers: Callable[[], Awaitable[Sequence[NodeRecord]]]) -> None:
        self._find_verifiers = find_verifiers
        self._looking = asyncio.Lock()
        self._valid_until_s = 0.0
        self._found: tuple[NodeRecord, ...] = ()
        self._reason = ""

    async def look(self) -> tuple[Sequence[NodeRecord], str]:
        """Return the latest verifiers, best first, and the reason if there are none, else ""."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() >= self._valid_until_s:
                try:
                    async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                        self._found, self._reason = tuple(await self._find_verifiers()), ""
                except CosineError as error:
                    self._found, self._reason = (), str(error)
                except TimeoutError:
                    self._found, self._reason = (), f"The network did not answer within {LOOK_UP_TIMEOUT_S:.0f} s."
                self._valid_until_s = loop.time() + (FRESH_S if self._found else RETRY_S)
        return self._found, self._reason


async def find_answering(client: AsyncClient) -> list[NodeRecord]:
    """Return the verifiers that answer now, at least one. Raises as `AsyncClient.find_verifiers`."""
    announced = await client.find_verifiers()
    surveyor = Surveyor(client.swarm, target=client.target, ask_timeout_s=NODE_ANSWER_S)
    try:
        found = [sight.record for sight in await surveyor.look_at(announced) if not sight.reason]
    finally:
        await surveyor.close()
    if not found:
        raise GenerationFailed(f"None of {len(announced)} announced verifiers answers.")
    return found


def model_routes(service: Service, watch: VerifierWatch) -> list[BaseRoute]:
    """The routes of the models, in the formats of OpenAI and Anthropic."""
    began_s = int(service.unix_s())

    async def describe(name: str) -> Json:
        verifiers, _ = await watch.look()
        context = verifiers[0].context_tokens if verifiers else None
        takes_config = bool(verifiers) and service.client.takes_generation_config
        published = default_sampling(verifiers[0], asked={}, otherwise=CHAT_DEFAULTS) if takes_config else None
        return {
            "id": name,
            "object": "model",
            "created": began_s,
            # Anthropic's clients read these.
            "type": "model",
            "display_name": name,
            "created_at": datetime.fromtimestamp(began_s, UTC).isoformat(),
            "owned_by": "cosine",
            "root": service.model_names[0],
            # The names of vLLM, OpenRouter and llama.cpp.
            "max_model_len": context,
            "context_length": context,
            "meta": {"n_ctx": context, "n_ctx_train": context},
            "generation_config": own_config(apply_defaults(published, asked={}, otherwise=CHAT_DEFAULTS)),
        }

    async def models(_: Request) -> Response:
        data = [await describe(name) for name in service.model_names]
        # Anthropic's clients request pages; this is the only one.
        pages = {"has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
        return JSONResponse({"object": "list", "data": data, **pages})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in service.model_names:
            raise no_such_model(name, service.model_names)
        return JSONResponse(await describe(name))

    return [Route("/models", models), Route("/models/{name:path}", model)]


def health_of(client: AsyncClient) -> Callable[[Request], Awaitable[Response]]:
    """The endpoint of probes: whether a verifier answers now."""
    answering = VerifierWatch(partial(find_answering, client))

    async def health(_: Request) -> Response:
        verifiers, reason = await answering.look()
        if reason:
            return JSONResponse({"status": "unavailable", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "ok", "verifiers": len(verifiers)})

    return health
