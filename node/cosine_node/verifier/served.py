"""The requests a verifier serves now, in order of admission."""

import asyncio
import logging
from collections.abc import Iterator

from cosine_node.fair_places import IDLE_WANTED_S
from cosine_node.verifier.audited_stream import AuditedStream
from cosine_node.verifier.request import ClientChannel, VerifierRequest
from cosine_p2p.channel import MAX_SENTENCE
from cosine_p2p.request_log import RequestLogger, request_log
from cosine_protocol import messages as m
from cosine_protocol.errors import CosineError, ErrorCode, PeerError

LOG = logging.getLogger(__name__)


def log_of(request: VerifierRequest) -> RequestLogger:
    """The log lines of a request, which name it and its client."""
    return request_log(LOG, request.d_0, client=request.channel.peer_id)


def idle_s(request: VerifierRequest) -> float:
    """The time for which a stepped request has waited for its client; 0 if it does not."""
    if not request.awaits_verify or request.committed_s is None:
        return 0.0
    return asyncio.get_running_loop().time() - request.committed_s


def yields_place(request: VerifierRequest) -> bool:
    """True for one whose place others may take: an audit, or a stepped request that its client leaves idle."""
    return isinstance(request, AuditedStream) or idle_s(request) > IDLE_WANTED_S


def post_error(request: VerifierRequest, error: CosineError) -> None:
    """Tell the client why its request fails; anything but a `PeerError` is the model's fault."""
    code = error.code if isinstance(error, PeerError) else ErrorCode.BAD_LOGITS
    retry_after_s = error.retry_after_s if isinstance(error, PeerError) else None
    request.post(m.Error(request.number, code, str(error)[:MAX_SENTENCE], retry_after_s))


class ServedRequests:
    """Requests by channel and number; iterates over a copy of them, the oldest first."""

    def __init__(self) -> None:
        self._requests: dict[tuple[ClientChannel, int], VerifierRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[VerifierRequest]:
        return iter(list(self._requests.values()))

    def __contains__(self, request: VerifierRequest) -> bool:
        return self._requests.get((request.channel, request.number)) is request

    def get(self, channel: ClientChannel, number: int) -> VerifierRequest | None:
        return self._requests.get((channel, number))

    def add(self, request: VerifierRequest) -> None:
        self._requests[(request.channel, request.number)] = request

    def remove(self, request: VerifierRequest) -> bool:
        """False if it was not there any more."""
        return self._requests.pop((request.channel, request.number), None) is not None

    @property
    def active(self) -> list[VerifierRequest]:
        """The requests that can use a pass."""
        return [request for request in self if request.can_use_pass]
