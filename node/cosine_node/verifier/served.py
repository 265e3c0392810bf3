"""The requests that a verifier serves, and their pages of the KV cache."""

import logging
from collections.abc import Iterator

from cosine_engine.base import Engine, OutOfPages, Row
from cosine_node.verifier.request import ClientChannel, RequestStage, ServedRequest
from cosine_p2p.session.request_log import RequestLogger, request_log
from cosine_protocol.errors import ErrorCode, PeerError

LOG = logging.getLogger(__name__)


def log_of(request: ServedRequest) -> RequestLogger:
    """The logger of a request, which adds its id and client."""
    return request_log(LOG, request.d_0, client=request.client)


class ServedRequests:
    """Requests by channel and number; iterates over a copy of them, the oldest first."""

    def __init__(self) -> None:
        self._requests: dict[tuple[ClientChannel, int], ServedRequest] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ServedRequest]:
        return iter(list(self._requests.values()))

    def __contains__(self, request: ServedRequest) -> bool:
        return self._requests.get((request.channel, request.number)) is request

    def get(self, channel: ClientChannel, number: int) -> ServedRequest | None:
        return self._requests.get((channel, number))

    def add(self, request: ServedRequest) -> None:
        self._requests[(request.channel, request.number)] = request

    def remove(self, request: ServedRequest) -> bool:
        """Remove a request; False if it was not there."""
        return self._requests.pop((request.channel, request.number), None) is not None

    def cancel_all(self, channel: ClientChannel) -> None:
        """Cancel all requests of a stream."""
        for request in self:
            if request.channel is channel:
                request.is_cancelled = True

    @property
    def active(self) -> list[ServedRequest]:
        """The requests that can use a pass."""
        return [request for request in self if request.can_use_pass]


class KvMemory:
    """Reserves pages of one engine's KV cache for the rows of a pass, in order of admission.

    It preempts younger requests by recomputation, as vLLM does (Kwon et al. 2023, arXiv 2309.06180); `preempted`
    counts these.
    """

    def __init__(self, engine: Engine, requests: ServedRequests) -> None:
        self._engine = engine
        self._requests = requests
        self.preempted = 0

    def use_prefix_cache(self, request: ServedRequest) -> None:
        """Reuse cached pages of the longest known prefix, once for each sequence."""
        if request.stage is RequestStage.DECODE or request.kv.was_prefix_cache_tried:
            return
        request.kv.was_prefix_cache_tried = True
        if not request.may_reuse_prefix:
            return
        if found := self._engine.reuse_prefix(request.kv.sequence, request.known_tokens):
            request.note_fed(found)
            request.kv.has_pages = True
            request.kv.cached_tokens = found

    def may_begin(self, request: ServedRequest) -> bool:
        """True if there is room for the whole prompt and those of older waiting requests, or no other has pages."""
        others = (other for other in self._requests if other is not request)
        if request.kv.fed_tokens or not any(other.kv.has_pages for other in others):
            return True
        older = [other for other in self._requests if other.admission <= request.admission]
        needed = max(other.unfed_tokens for other in older if not other.kv.fed_tokens)
        return self._engine.free_tokens > needed

    def try_reserve(self, request: ServedRequest, row: Row) -> bool:
        """Reserve pages for a row; False, and nothing changed, if there are too few."""
        try:
            self._engine.reserve(request.kv.sequence, len(row.tokens))
        except OutOfPages:
            return False
        request.kv.has_pages = True
        return True

    def reserve(self, request: ServedRequest, row: Row) -> bool:
        """Reserve pages, preempting younger requests; False to wait. Raises `PeerError` if it can never fit."""
        while not self.try_reserve(request, row):
            holders = [other for other in self._requests if other.kv.has_pages]
            younger = [other for other in holders if other.admission > request.admission]
            if younger:
                preempted = max(younger, key=lambda other: other.admission)
                self.preempted += 1
                self._engine.release(preempted.kv.sequence)
                self.begin_anew(preempted)
            elif all(other is request for other in holders):
                raise PeerError(ErrorCode.OUT_OF_MEMORY, "the request needs more memory than the verifier has")
            else:
                return False
        return True

    def begin_anew(self, request: ServedRequest) -> None:
        """Give a request an empty sequence after its pages were lost."""
        wanted = request.request
        request.preempt(
            self._engine.open(sampling=wanted.sampling, prompt_tokens=len(wanted.prompt), scope=request.kv.scope)
        )
