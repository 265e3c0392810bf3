"""Pages of the KV cache for the rows of a pass: in order of admission, if need be from younger requests. Pure.

A request whose pages are taken is computed again once there is room (preemption by recomputation, as in vLLM: Kwon
et al. 2023, arXiv 2309.06180).
"""

from cosine_node.engine.base import Engine, OutOfPages, Row
from cosine_node.verifier.request import RequestStage, VerifierRequest
from cosine_node.verifier.served import ServedRequests
from cosine_protocol.errors import ErrorCode, PeerError


class KvMemory:
    """Reserves pages of one engine for the served requests. `preempted` counts how often pages were taken."""

    def __init__(self, engine: Engine, requests: ServedRequests) -> None:
        self._engine = engine
        self._requests = requests
        self.preempted = 0

    def use_prefix_cache(self, request: VerifierRequest) -> None:
        """Begin a new sequence with the pages that already hold the beginning of its known tokens, once."""
        if request.stage is RequestStage.DECODE or request.kv.was_prefix_cache_tried:
            return
        request.kv.was_prefix_cache_tried = True
        if found := self._engine.reuse_prefix(request.kv.sequence, request.known_tokens):
            request.note_fed(found)
            request.kv.has_pages = True

    def may_begin(self, request: VerifierRequest) -> bool:
        """True if a prompt can be fed whole, or its request is the only one: half of a prompt helps nobody.

        No request begins before older ones that wait for room, or they might wait for ever.
        """
        others = (other for other in self._requests if other is not request)
        if request.kv.fed_tokens or not any(other.kv.has_pages for other in others):
            return True
        older = [other for other in self._requests if other.admission <= request.admission]
        needed = max(other.unfed_tokens for other in older if not other.kv.fed_tokens)
        return self._engine.free_tokens > needed

    def try_reserve(self, request: VerifierRequest, row: Row) -> bool:
        """Reserve pages for a row; False, and nothing changed, if there are too few."""
        try:
            self._engine.reserve(request.kv.sequence, len(row.tokens))
        except OutOfPages:
            return False
        request.kv.has_pages = True
        return True

    def reserve(self, request: VerifierRequest, row: Row) -> bool:
        """Reserve pages for a row, taking those of younger requests; False if it has to wait for older ones.

        Raises `PeerError` if the row needs more pages than there are.
        """
        while not self.try_reserve(request, row):
            holders = [other for other in self._requests if other.kv.has_pages]
            younger = [other for other in holders if other.admission > request.admission]
            if younger:
                self._preempt(max(younger, key=lambda other: other.admission))
            elif all(other is request for other in holders):
                raise PeerError(ErrorCode.OUT_OF_MEMORY, "the request needs more memory than the verifier has")
            else:
                return False
        return True

    def _preempt(self, request: VerifierRequest) -> None:
        self.preempted += 1
        self._engine.release(request.kv.sequence)
        self.begin_anew(request)

    def begin_anew(self, request: VerifierRequest) -> None:
        """Give a request an empty sequence: its pages are gone."""
        wanted = request.request
        request.preempt(
            self._engine.open(sampling=wanted.sampling, prompt_tokens=len(wanted.prompt), scope=request.kv.scope)
        )
