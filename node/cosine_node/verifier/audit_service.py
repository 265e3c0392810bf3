"""A verifier's audits of others: questions in, admitted or refused, and replayed in the passes of its step loop."""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from cosine_node.engine.base import Engine
from cosine_node.passes.counts import VerifierCounts
from cosine_node.verifier.admission import check_claim
from cosine_node.verifier.audited_stream import AuditedStream
from cosine_node.verifier.request import KvState
from cosine_node.verifier.served import ServedRequests, log_of
from cosine_p2p.session.request_log import PEER_LETTERS
from cosine_p2p.transport.base import Stream, Transport
from cosine_p2p.transport.channel import Channel, serve_channel, serving_budget
from cosine_p2p.trust.audit_rule import near_tie_of
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.messages import AskAudit
from cosine_protocol.protocols import AUDIT

MAX_AUDITS: Final = 2
"""A choice: audits at once, of all peers; they take what prompts leave of a pass."""
MAX_PEER_AUDITS: Final = 1
"""A choice: audits at once of one peer."""
TOKENS_PER_S: Final = 100.0
"""A choice: clients that audit 5 % of what they are given ask for so much only at 2,000 tokens a second."""
AHEAD_S: Final = 60.0
"""A choice: a peer may have audited in one go what it may in so long."""
RETRY_AFTER_S: Final = 2.0
"""A choice: an audit of a few hundred tokens takes about so long beside other requests."""
MAX_PEERS: Final = 1024
"""Bounds memory: peers whose audits are remembered; those that asked longest ago are forgotten first."""


class AuditQuota:
    """Remembers what peers had audited. Times never go back."""

    def __init__(self) -> None:
        self._paid_until_s: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, peer_id: str, under_way: Iterable[str], *, now_s: float) -> float:
        """Seconds until a peer may ask, 0 if it may now; `under_way` are the peers whose audits have not ended."""
        asked = Counter(under_way)
        if asked.total() >= MAX_AUDITS or asked[peer_id] >= MAX_PEER_AUDITS:
            return RETRY_AFTER_S
        return max(0.0, self._paid_until_s.get(peer_id, now_s) - now_s - AHEAD_S)

    def note(self, peer_id: str, *, tokens: int, now_s: float) -> None:
        """Count an audit of so many tokens."""
        paid_s = max(now_s, self._paid_until_s.pop(peer_id, now_s))
        self._paid_until_s[peer_id] = paid_s + tokens / TOKENS_PER_S
        if len(self._paid_until_s) > MAX_PEERS:
            self._paid_until_s.popitem(last=False)


LOG = logging.getLogger(__name__)
LATEST: Final = 1 << 62
"""Above every number of admission: pages are taken from audits first."""


class AuditService:
    """Serves `/cosine/audit`. Audits are among `requests`, where a place is free; whoever comes takes it back.

    `digests` are those of the target and of its tokenizer; `wake` is called when something changed.
    """

    def __init__(
        self,
        requests: ServedRequests,
        *,
        engine: Engine,
        digests: tuple[bytes, bytes],
        most_requests: int,
        counts: VerifierCounts,
        wake: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._engine = engine
        self._target_digest, self._tokenizer_digest = digests
        self._most_requests = most_requests
        self._counts = counts
        self._wake = wake
        self._quota = AuditQuota()
        self._reads = serving_budget()
        self._capacity_tokens = engine.free_tokens
        self.is_draining = False

    async def start(self, transport: Transport) -> None:
        """Begin to accept streams."""
        await transport.serve(AUDIT, self.handle)

    async def handle(self, stream: Stream) -> None:
        """Serve one client's stream until it ends; its audits go with it."""
        await serve_channel(stream, AUDIT, self._receive, on_end=self._end, budget=self._reads)

    def _end(self, channel: Channel, reason: str) -> None:
        for request in self._requests:
            if request.channel is channel:
                request.is_cancelled = True
        self._wake()

    def _receive(self, channel: Channel, message: m.Message) -> None:
        if not isinstance(message, AskAudit):
            channel.post(m.Error(0, ErrorCode.MALFORMED, f"unexpected {type(message).__name__}", None))
            return
        try:
            self._begin(channel, message)
        except PeerError as refusal:
            self._counts.refused[ErrorCode(refusal.code)] += 1
            LOG.info("client=%s: no audit, %s", channel.peer_id[-PEER_LETTERS:], refusal.message)
            channel.post(m.Error(message.number, refusal.code, refusal.message, refusal.retry_after_s))

    def _begin(self, channel: Channel, claim: AskAudit) -> None:
        """Replay a stream from now on. Raises `PeerError` with the reason why not."""
        now_s = asyncio.get_running_loop().time()
        if self.is_draining:
            raise PeerError(ErrorCode.SHUTTING_DOWN, "the verifier is shutting down")
        if self._requests.get(channel, claim.number) is not None:
            raise PeerError(ErrorCode.MALFORMED, "this request number is in use")
        under_way = [one.channel.peer_id for one in self._requests if isinstance(one, AuditedStream)]
        wait_s = self._quota.wait_s(channel.peer_id, under_way, now_s=now_s)
        if wait_s or len(self._requests) >= self._most_requests:
            raise PeerError(ErrorCode.OVERLOADED, "there is no time for another audit now", wait_s or RETRY_AFTER_S)
        transcript = check_claim(
            claim, engine=self._engine, target_digest=self._target_digest, tokenizer_digest=self._tokenizer_digest
        )
        tokens = len(claim.request.prompt) + len(claim.tokens)
        if tokens > self._capacity_tokens:
            sentence = f"the audit needs room for {tokens} tokens, the verifier has {self._capacity_tokens}"
            raise PeerError(ErrorCode.OUT_OF_MEMORY, sentence)
        # Counted once it has begun, however it ends: its signature was checked, and its passes are run.
        self._quota.note(channel.peer_id, tokens=tokens, now_s=now_s)
        sequence = self._engine.open(sampling=claim.request.sampling, prompt_tokens=len(claim.request.prompt))
        audited = AuditedStream(
            channel,
            claim.number,
            claim.request,
            KvState(sequence),
            list(claim.tokens),
            admission=LATEST,
            near_tie=near_tie_of(self._engine.numerics),
            claim=claim,
            own_from=transcript.first,
        )
        self._requests.add(audited)
        self._counts.opened += 1
        log_of(audited).info("an audit of %d tokens", len(claim.tokens) - transcript.first)
        self._wake()
