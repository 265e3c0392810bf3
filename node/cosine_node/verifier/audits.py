"""The audit service: it gives streams of other verifiers a place in the passes of this verifier's step loop."""

import asyncio
from collections.abc import Callable
from typing import Final

from cosine_node.verifier.admission import RETRY_AFTER_S, VerifierConfig, check_claim
from cosine_node.verifier.audited_stream import AuditedStream
from cosine_node.verifier.batch import log_of
from cosine_node.verifier.intake import RequestIntake, cannot_judge, number_in_use, shutting_down
from cosine_node.verifier.step_loop import StepLoop
from cosine_p2p.fair_places import FairQueue, User
from cosine_p2p.session.auditing import AUDIT_ANSWER_S
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel, serving_budget
from cosine_protocol.audit import AUDIT, AskAudit
from cosine_protocol.codec import Message
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.identity import Identity
from cosine_protocol.stream import Error

MAX_AUDITS: Final = 2
"""Concurrent audits of all peers. With one, a long audit would delay all others; with four, each would take twice
as long, on twice the pages."""
TOKENS_PER_S: Final = 100.0
"""Audited tokens per second and peer. A client that audits 5 % of its output needs this at 2,000 tokens a
second."""
AHEAD_S: Final = 60.0
"""Seconds of a peer's rate that it may use at once, 6,000 tokens, since whole texts are audited."""
MAX_WAIT_S: Final = AUDIT_ANSWER_S / 2
"""Half of the time for which a client waits for an answer; the rest is for the audit."""


class AuditService(RequestIntake[AskAudit]):
    """Serves `/cosine/audit`. Audits take free places, which other requests may take back.

    Waiting claims about known verifiers (`knows`) go first, since anyone can sign a claim with a new key. Among
    claims of one kind, the least served client is next.
    """

    waits_s = MAX_WAIT_S

    def __init__(
        self, loop: StepLoop, config: VerifierConfig, auditor: Identity, *, knows: Callable[[str], bool]
    ) -> None:
        super().__init__(loop, config, lines=2)
        self._auditor = auditor
        self._knows = knows
        # The time until which a peer has used its rate.
        self._paid_until_s: Remembered[str, float] = Remembered(1024)
        self._reads = serving_budget()

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream, and cancel its audits when it ends."""
        await serve_channel(stream, AUDIT, self._receive, on_end=self.leave, budget=self._reads)

    def _receive(self, channel: Channel, message: Message) -> None:
        if isinstance(message, AskAudit):
            self.ask(channel, message)
        else:
            channel.post(Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))

    def _check(self, channel: Channel, asked: AskAudit) -> None:
        if self._is_draining:
            raise shutting_down()
        if (reason := self._loop.why_not_judge) is not None:
            raise cannot_judge(reason)

    @property
    def _has_place(self) -> bool:
        under_way = sum(isinstance(one, AuditedStream) for one in self._requests)
        return under_way < MAX_AUDITS and len(self._requests) < self._config.max_requests

    def _line_of(self, user: User, asked: AskAudit) -> FairQueue[tuple[Channel, AskAudit]]:
        return self._lines[0 if self._knows(asked.author) else 1]

    def _no_place(self) -> PeerError:
        return _no_time(RETRY_AFTER_S)

    def _begin(self, channel: Channel, asked: AskAudit) -> None:
        """Begin to replay a stream."""
        now_s = asyncio.get_running_loop().time()
        peer_id, engine = channel.peer_id, self._loop.engine
        if self._requests.get(channel, asked.number) is not None:
            raise number_in_use()
        paid_until_s = self._paid_until_s.get(peer_id) or now_s
        if (wait_s := paid_until_s - now_s - AHEAD_S) > 0:
            raise _no_time(wait_s)
        transcript = check_claim(asked, engine=engine, config=self._config)
        tokens = len(asked.request.prompt) + len(asked.tokens)
        if tokens > self.capacity_tokens:
            sentence = f"the audit needs room for {tokens} tokens, the verifier has {self.capacity_tokens}"
            raise PeerError(ErrorCode.OUT_OF_MEMORY, sentence)
        # Charged when it begins, however it ends: its signature was checked.
        self._paid_until_s.note(peer_id, max(now_s, paid_until_s) + tokens / TOKENS_PER_S)
        for line in self._lines:
            line.note_given(User(peer_id), tokens)
        audited = AuditedStream.of(asked, channel, engine=engine, first=transcript.first, auditor=self._auditor)
        self._requests.add(audited)
        self.counts.opened += 1
        log_of(audited).info("an audit of %d tokens", len(asked.tokens) - transcript.first)
        self._loop.wake()


def _no_time(wait_s: float) -> PeerError:
    return PeerError(ErrorCode.OVERLOADED, "no capacity for another audit now", wait_s)
