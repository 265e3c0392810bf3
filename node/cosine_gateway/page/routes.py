"""The page's own API: the swarm and its changes, the machine, proofs and audits."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cosine_gateway.admission import Admission, admitted_object
from cosine_gateway.api_errors import ApiError, bad_value, unavailable
from cosine_gateway.body import Json
from cosine_gateway.endpoint import until_ended
from cosine_gateway.event_stream import EventStream, sent_event
from cosine_gateway.page.invited import invitation_facts
from cosine_gateway.page.machine import PageMachine, is_here
from cosine_gateway.page.swarm_facts import changes, swarm_facts
from cosine_p2p.access import Access
from cosine_p2p.client import AsyncClient
from cosine_p2p.invitation import INVITED_DAYS
from cosine_p2p.request.results import Generation, Observer
from cosine_p2p.survey import NodeSight, Surveyor
from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence, OpenedEvidence, evidence_of_json
from cosine_protocol.digests import request_digest
from cosine_protocol.errors import MalformedMessage, RemoteProtocolError, UsageError
from cosine_protocol.fields import decode_body
from cosine_protocol.verify import Transcript

MAX_POINTS: Final = 240
"""As many as a curve on a screen can show."""


class Trend:
    """An `Observer` that keeps the latest generations as JSON `points`, oldest first, and forwards to another."""

    def __init__(self, observer: Observer, *, unix_s: Callable[[], float]) -> None:
        self._observer = observer
        self._unix_s = unix_s
        self.points: deque[Json] = deque(maxlen=MAX_POINTS)

    def observe(self, done: Generation) -> None:
        self._observer.observe(done)
        took_s = done.seconds - done.time_to_first_token_s
        if done.usage.completion_tokens > 1 and took_s > 0 and done.swarm.rounds:
            self.points.append(
                {
                    "unix_s": round(self._unix_s(), 3),
                    "tokens": done.usage.completion_tokens,
                    "tokens_per_s": round((done.usage.completion_tokens - 1) / took_s, 2),
                    "tokens_per_pass": round(done.usage.completion_tokens / done.swarm.rounds, 3),
                    "acceptance": round(done.swarm.accepted / done.swarm.offered, 4)
                    if done.swarm.offered
                    else None,
                }
            )

    def observe_abandoned(self, part: Generation) -> None:
        self._observer.observe_abandoned(part)


WATCH_EVERY_S: Final = 2.0
"""A compromise between freshness and the load of nodes, as in `cosine status --watch`."""
MAX_WATCHERS: Final = 64
"""Bounds the open connections of a gateway."""

LOG = logging.getLogger(__name__)


class SwarmWatch:
    """Polls the state of a swarm by `look` while there are watchers, one call at a time.

    `rest` is called after the last watcher leaves.
    """

    def __init__(
        self,
        look: Callable[[], Awaitable[Json]],
        *,
        rest: Callable[[], Awaitable[None]],
        every_s: float = WATCH_EVERY_S,
    ) -> None:
        self._look = look
        self._rest = rest
        self._every_s = every_s
        self._state: Json | None = None
        self._watchers: set[asyncio.Queue[Json]] = set()
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """True if no further watcher is allowed."""
        return len(self._watchers) >= MAX_WATCHERS

    async def now(self) -> Json:
        """Return the current state, or the latest one if there are watchers."""
        if self._watchers and self._state is not None:
            return self._state
        try:
            return await self._look_once()
        finally:
            await self._rest_unless_watched()

    async def watch(self) -> AsyncGenerator[tuple[str, Json], None]:
        """Yield `("swarm", state)`, then `("change", changes)`, until the generator is closed."""
        inbox: asyncio.Queue[Json] = asyncio.Queue()
        self._watchers.add(inbox)
        try:
            state = self._state or await self._look_once()
            if self._task is None:
                self._task = asyncio.ensure_future(self._run())
            yield "swarm", state
            while True:
                seen = await inbox.get()
                # A slow reader skips to the latest state.
                while not inbox.empty():
                    seen = inbox.get_nowait()
                told, state = changes(state, seen), seen
                yield "change", told
        finally:
            self._watchers.discard(inbox)
            await self._rest_unless_watched()

    async def _rest_unless_watched(self) -> None:
        if self._watchers:
            return
        task, self._task, self._state = self._task, None, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        async with self._looking:
            await self._rest()

    async def _look_once(self) -> Json:
        async with self._looking:
            return await self._look()

    async def _run(self) -> None:
        while True:
            try:
                self._state = await self._look_once()
            except Exception:
                LOG.exception("a look at the swarm failed")
            else:
                for inbox in self._watchers:
                    inbox.put_nowait(self._state)
            await asyncio.sleep(self._every_s)


MAX_PIECES: Final = 4
"""Bounds the work of one request: a text has one piece for each of its verifiers, usually one."""
MAX_AUDITS: Final = 4
"""Maximum number of audits at once: each asks several peers, which limit questions."""
MAX_CHECKS: Final = 2
"""Maximum number of proofs checked at once; each occupies a thread."""


class Watched:
    """The handlers of the page's API over a client's swarm.

    `access` is its network, and `machine` answers for this machine. Audits and checks of proofs are shared fairly
    between `keys` API keys. Streams end when `closing` is set.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        trend: Trend,
        access: Access,
        machine: PageMachine | None,
        closing: asyncio.Event,
        keys: int,
    ) -> None:
        self._client = client
        self._trend = trend
        self._access = access
        self._closing = closing
        self._audits = Admission(max_running=MAX_AUDITS, max_waiting=4 * MAX_AUDITS, keys=keys)
        self._checks = Admission(max_running=MAX_CHECKS, max_waiting=16 * MAX_CHECKS, keys=keys)
        self._surveyor: Surveyor | None = None
        self._machine = machine
        self._reached: list[NodeSight] = []
        self._watch = SwarmWatch(self._look, rest=self._rest)

    async def _look(self) -> Json:
        if self._surveyor is None:
            self._surveyor = Surveyor(self._client.swarm, target=self._client.target)
        survey = await self._surveyor.survey()
        convicted = self._client.convicted
        self._reached = [sight for sight in survey.nodes if not sight.reason]
        trusted = [sight.record for sight in self._reached if sight.record.peer_id not in convicted]
        last_day = datetime.now(UTC).date() + timedelta(days=INVITED_DAYS)
        facts = swarm_facts(survey, self._machine, convicted=convicted, checks=self._client.checks())
        return facts | {
            "entrance": list(self._access.entrance),
            "invitation": invitation_facts(trusted, self._access, last_day=last_day),
            "trend": list(self._trend.points),
        }

    async def _rest(self) -> None:
        """Close the links to all nodes, as each costs both ends heartbeats."""
        surveyor, self._surveyor = self._surveyor, None
        if surveyor is not None:
            await surveyor.close()

    async def swarm(self, _: Request) -> Response:
        """The current state of the swarm."""
        return JSONResponse(await self._watch.now())

    async def events(self, _: Request) -> ASGIApp:
        """A stream of the swarm's state and then each change, until the client hangs up."""
        if self._watch.is_full:
            raise unavailable("Too many clients watch this swarm.", code="overloaded")

        async def respond(_: Scope, receive: Receive, send: Send) -> None:
            stream = EventStream(send)

            async def tell() -> None:
                async with aclosing(self._watch.watch()) as events:
                    async for name, body in events:
                        await stream.write(sent_event(body, name=name))

            async with stream.kept_alive():
                await until_ended(tell(), receive=receive, closing=self._closing)
                await stream.write(b"", is_last=True)

        return respond

    async def machine(self, request: Request) -> Response:
        """The resources of this machine, only for requests from it."""
        machine = self._asked_here(request)
        await self._watch.now()
        return JSONResponse(await machine.facts(self._client.target, [sight.record for sight in self._reached]))

    async def suggestions(self, request: Request) -> Response:
        """Measured suggestions of what this machine should run, only for requests from it."""
        machine = self._asked_here(request)
        swarm = await self._watch.now()
        invited, entrance = swarm["invitation"], self._access.entrance
        way = (invited["link"], *(entrance if invited["is_private"] else ())) if invited else ("ADDRESS", *entrance)
        try:
            return JSONResponse(await machine.advice(self._client.target, way=way, nodes=self._reached))
        except UsageError as error:
            raise unavailable(str(error), code="not_measured") from None

    def _asked_here(self, request: Request) -> PageMachine:
        """This machine. Raises `ApiError` for a request from another one."""
        if not is_here(request):
            message = "Facts about this machine can be read only from this machine."
            raise ApiError(HTTPStatus.FORBIDDEN, message, code="not_here")
        if self._machine is None:
            raise ApiError(HTTPStatus.NOT_FOUND, "This gateway does not look at its machine.", code="not_found")
        return self._machine

    async def audits(self, request: Request) -> Response:
        """The evidence of a proof after an audit by other verifiers."""
        async with admitted_object(request, self._audits) as body:
            judged = await self._client.audit(_pieces_of(body))
        return JSONResponse({"evidence": [asdict(piece) for piece in judged]})

    async def proofs(self, request: Request) -> Response:
        """The result of checking a proof; `problem` is the reason if it is invalid."""
        async with admitted_object(request, self._checks) as body:
            try:
                return JSONResponse(await asyncio.to_thread(checked_proof, _pieces_of(body)))
            except RemoteProtocolError as error:
                return JSONResponse({"problem": str(error)})

    def routes(self) -> list[BaseRoute]:
        """The routes of the page's API."""
        return [
            Route("/swarm", self.swarm),
            Route("/swarm/events", self.events),
            Route("/machine", self.machine),
            Route("/suggestions", self.suggestions, methods=["POST"]),
            Route("/proofs", self.proofs, methods=["POST"]),
            Route("/audits", self.audits, methods=["POST"]),
        ]


def _pieces_of(body: Json) -> tuple[Evidence, ...]:
    """Read the evidence of a body. Raises `ApiError`."""
    evidence = body.get("evidence", [])
    pieces = evidence_of_json(evidence)
    if not 0 < len(pieces) == len(evidence) <= MAX_PIECES:
        raise bad_value("evidence", f"evidence must be a list of 1 to {MAX_PIECES} pieces of a proof.")
    return pieces


def checked_proof(pieces: Sequence[Evidence]) -> Json:
    """Return the result of `POST /v1/proofs` for at least one piece. Blocks.

    Raises `RemoteProtocolError` if a piece is invalid or belongs to another request than the first.
    """
    opened = [piece.open() for piece in pieces]
    digest = request_digest(opened[0].claim.request)
    if any(request_digest(each.claim.request) != digest for each in opened):
        raise MalformedMessage("its parts are of different requests")
    verdicts = sum(len(each.verdicts) for each in opened)
    return {
        "state": max((each.state for each in opened), key=list(AuditState).index),
        "signatures": len(pieces) + verdicts,
        "parts": [_part(*each, digest) for each in zip(pieces, opened, strict=True)],
    }


def _part(piece: Evidence, opened: OpenedEvidence, digest: bytes) -> Json:
    claim = opened.claim
    request = claim.request
    return {
        "author": claim.author,
        "digest": digest.hex(),
        "prompt_tokens": len(request.prompt),
        # A string, as many JSON readers round 64-bit numbers.
        "seed": str(request.sampling.seed),
        "temperature": request.sampling.temperature,
        "numerics": request.numerics,
        "first": decode_body(Transcript, claim.transcript.body).first,
        "tokens": list(claim.tokens),
        "judgements": [
            {
                "auditor": statement.auditor,
                "accuses": accuses(verdict, request),
                "equal": verdict.equal,
                "near_ties": verdict.near_ties,
                "different": verdict.different,
            }
            for statement, verdict in zip(piece.statements, opened.verdicts, strict=True)
        ],
    }
