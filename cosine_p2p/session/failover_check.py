"""At a failover, the verifier that goes on judges the end of what the one before it has committed."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Final

from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.session.session import Session
from cosine_p2p.session.upstream import Tokens
from cosine_p2p.trust.audit_rule import accuses
from cosine_p2p.trust.mandates import Mandates
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.digests import roll_digest
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.messages import AskAudit, AuditVerdict, Transcript
from cosine_protocol.statements import sign_transcript

TAIL_TOKENS: Final = 64
"""A choice: what a verifier replays in one pass. It holds what was not signed yet, and a part that was."""
HOLD_S: Final = 1.0
"""A choice: text waits so long for the answer, and then goes on until it comes."""
MAX_OTHERS: Final = 2
"""A choice: verifiers that are asked for a second opinion, until one has time for it."""

Judge = Callable[[str, AskAudit], Awaitable[AuditVerdict | None]]
"""Asks a peer for its verdict; None where it gives none."""

logger = logging.getLogger(__name__)


class TextAccused(GenerationFailed):
    """A part of the text is not the target's, by the word of the verifier that goes on after it."""


class FailoverCheck:
    """Compares the parts of one session, each with the verifier that goes on after it.

    The client itself signs what is to be judged, since a verifier that falls silent has not signed its last tokens.
    """

    def __init__(self, session: Session, *, mandates: Mandates, judge: Judge, failures: PeerFailures) -> None:
        """`failures` is told of one that accuses where another does not."""
        self._session = session
        self._identity = mandates.identity
        self._judge = judge
        self._failures = failures
        self._seen = 1
        self._asking: list[asyncio.Task[None]] = []
        self._accusation = ""

    async def checked(self, stream: AsyncIterator[Tokens]) -> AsyncGenerator[Tokens, None]:
        """The stream of the session. Raises `TextAccused` once tokens that it has shown are accused."""
        try:
            async for tokens in stream:
                if asking := self._next():
                    await asyncio.wait([asking], timeout=HOLD_S)
                self._raise_accusation()
                yield tokens
            if self._asking:
                await asyncio.wait(self._asking, timeout=HOLD_S)
            self._raise_accusation()
        finally:
            for asking in self._asking:
                asking.cancel()

    def _next(self) -> "asyncio.Task[None] | None":
        """The question of a part that has ended, where another verifier has gone on since."""
        parts = self._session.signed.parts()
        if len(parts) == self._seen:
            return None
        (author, first), (judge, end) = parts[self._seen - 1], parts[self._seen]
        self._seen += 1
        if author == judge:
            return None
        self._asking.append(asyncio.ensure_future(self._ask(author, judge, max(first, end - TAIL_TOKENS), end)))
        return self._asking[-1]

    def _raise_accusation(self) -> None:
        if self._accusation:
            raise TextAccused(self._accusation)

    async def _ask(self, author: str, judge: str, first: int, end: int) -> None:
        """Have a part judged by the verifier that goes on and, if it accuses, by another one, if there is one."""
        request, tokens = self._session.job.request, tuple(self._session.output[:end])
        part = Transcript(first, end, roll_digest(self._session.d_0, tokens))
        signed = sign_transcript(self._identity, part, d_0=self._session.d_0)
        claim = AskAudit(0, request, tokens, self._identity.peer_id, signed)
        verdict = await self._judge(judge, claim)
        if verdict is None or not accuses(verdict, request):
            return
        others = [record.peer_id for record in self._session.job.verifiers if record.peer_id not in (author, judge)]
        for other in others[:MAX_OTHERS]:
            second = await self._judge(other, claim)
            if second is not None:
                if not accuses(second, request):
                    self._failures.note_failed(judge, now_s=asyncio.get_running_loop().time())
                break
        wrong = min((finding.position for finding in verdict.findings), default=first)
        logger.warning("verifier %s is accused by %s, which goes on", author[-PEER_LETTERS:], judge[-PEER_LETTERS:])
        self._accusation = (
            f"Verifier {author} failed, and verifier {judge}, which went on, would have written something else "
            f"from output token {wrong + 1} on; one of them lies, so ask again."
        )
