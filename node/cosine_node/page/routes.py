"""What the page asks of the gateway that serves it: the swarm, its machine, proofs and audits."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from cosine_node.gateway.admission import Admission, admitted_object
from cosine_node.gateway.api_errors import ApiError, bad_value, unavailable
from cosine_node.gateway.endpoint import until_ended
from cosine_node.gateway.event_stream import EventStream, sent_event
from cosine_node.page.machine import OwnMachine, is_here
from cosine_node.page.proofs import checked_proof
from cosine_node.page.swarm_facts import OwnNotes, swarm_facts
from cosine_node.page.trend import Trend
from cosine_node.page.watch import SwarmWatch
from cosine_p2p.client import AsyncClient
from cosine_p2p.survey import Surveyor
from cosine_p2p.trust.evidence import Evidence, evidence_of_json
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.records import NodeRecord

Json = dict[str, Any]
MAX_PIECES: Final = 4
"""Bounds the work of one request: a text has as many pieces as verifiers wrote it, mostly one."""
MAX_AUDITS: Final = 4
"""Each asks several peers, which leave look-ups of who asks more without an answer."""
MAX_CHECKS: Final = 2
"""Proofs checked at a time; each check keeps a thread busy."""


class Watched:
    """A client's swarm as the page asks for it; `trend` knows how its generations went.

    `entrance` are the options of a node that joins it. Audits and checks of proofs are made in turns between `keys`
    API keys. Streams end when `closing` is set.
    """

    def __init__(
        self, client: AsyncClient, *, trend: Trend, entrance: Sequence[str], closing: asyncio.Event, keys: int
    ) -> None:
        self._client = client
        self._trend = trend
        self._entrance = list(entrance)
        self._closing = closing
        self._audits = Admission(max_running=MAX_AUDITS, max_waiting=4 * MAX_AUDITS, keys=keys)
        self._checks = Admission(max_running=MAX_CHECKS, max_waiting=16 * MAX_CHECKS, keys=keys)
        self._surveyor: Surveyor | None = None
        self._machine = OwnMachine(client.target)
        self._records: list[NodeRecord] = []
        self._watch = SwarmWatch(self._look, rest=self._rest)

    async def _look(self) -> Json:
        if self._surveyor is None:
            self._surveyor = Surveyor(self._client.swarm, target=self._client.target)
        survey = await self._surveyor.survey()
        self._records = [sight.record for sight in survey.nodes if not sight.reason]
        notes = OwnNotes(convicted=self._client.convicted, checks=self._client.checks())
        return swarm_facts(survey, notes) | {"entrance": self._entrance, "trend": self._trend.as_objects()}

    async def _rest(self) -> None:
        """Let go of the links to all nodes: each costs both ends a heartbeat."""
        surveyor, self._surveyor = self._surveyor, None
        if surveyor is not None:
            await surveyor.close()

    async def swarm(self, _: Request) -> Response:
        """The swarm as it is now."""
        return JSONResponse(await self._watch.now())

    async def events(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The swarm, and then each change, until the client hangs up."""
        if self._watch.is_full:
            raise unavailable("Too many watch this swarm here.", code="overloaded")

        stream = EventStream(send)

        async def tell() -> None:
            async with aclosing(self._watch.watch()) as events:
                async for name, body in events:
                    await stream.write(sent_event(body, name=name))

        async with stream.kept_alive():
            await until_ended(tell(), receive=receive, closing=self._closing)
            await stream.write(b"", is_last=True)

    async def machine(self, request: Request) -> Response:
        """What this machine could give to the swarm, for who sits at it."""
        if not is_here(request):
            message = "What this machine is, is told to who asks from it."
            raise ApiError(HTTPStatus.FORBIDDEN, message, code="not_here")
        await self._watch.now()
        return JSONResponse(await self._machine.facts(self._records))

    async def audits(self, request: Request) -> Response:
        """The evidence of a proof, judged by other verifiers now."""
        async with admitted_object(request, self._audits) as body:
            judged = await self._client.audit(_pieces_of(body))
        return JSONResponse({"evidence": [asdict(piece) for piece in judged]})

    async def proofs(self, request: Request) -> Response:
        """The result of checking a proof; `problem` says why it proves nothing."""
        async with admitted_object(request, self._checks) as body:
            try:
                return JSONResponse(await asyncio.to_thread(checked_proof, _pieces_of(body)))
            except RemoteProtocolError as error:
                return JSONResponse({"problem": str(error)})

    def routes(self) -> list[BaseRoute]:
        """What the page asks."""
        return [
            Route("/swarm", self.swarm),
            Route("/swarm/events", _Events(self)),
            Route("/machine", self.machine),
            Route("/proofs", self.proofs, methods=["POST"]),
            Route("/audits", self.audits, methods=["POST"]),
        ]


def _pieces_of(body: Json) -> tuple[Evidence, ...]:
    """The evidence in a body. Raises `ApiError`."""
    evidence = body.get("evidence", [])
    pieces = evidence_of_json(evidence)
    if not 0 < len(pieces) == len(evidence) <= MAX_PIECES:
        raise bad_value("evidence", f"evidence must be a list of 1 to {MAX_PIECES} pieces of a proof.")
    return pieces


class _Events:
    """An ASGI application, for which a route takes an object and no function."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._watched.events(scope, receive, send)
