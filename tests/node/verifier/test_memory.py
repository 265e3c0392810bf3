"""Whoever came first keeps its pages; the youngest gives its own up, and begins again when there is room."""

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.verifier.request import KvState, VerifierRequest
from cosine_node.verifier.served import KvMemory, ServedRequests
from cosine_protocol.errors import ErrorCode, PeerError
from cosine_protocol.messages import Message, Pacing
from tests.node.peers import request_of

POOL_TOKENS = 64


class NoChannel:
    """A client that is never told anything."""

    peer_id = "c"

    def post(self, message: Message) -> bool:
        raise AssertionError(f"{message} was posted")


class Served:
    """Requests of an engine with few pages, in order of admission."""

    def __init__(self, *prompt_tokens: int) -> None:
        self.engine = ScriptedEngine(pool_tokens=POOL_TOKENS)
        self.requests = ServedRequests()
        self.memory = KvMemory(self.engine, self.requests)
        self.admitted = [self._admit(number, tokens) for number, tokens in enumerate(prompt_tokens)]

    def _admit(self, number: int, prompt_tokens: int) -> VerifierRequest:
        request = request_of("c", prompt=(number,) * prompt_tokens)
        sequence = self.engine.open(sampling=request.sampling, prompt_tokens=prompt_tokens)
        admitted = VerifierRequest(
            NoChannel(), number, request, KvState(sequence), [], pacing=Pacing.FREE, authors=1, admission=number
        )
        self.requests.add(admitted)
        return admitted

    def feed(self, number: int) -> bool:
        """Reserve the pages of a whole prompt and feed it; False if it has to wait."""
        request = self.admitted[number]
        row = request.prefill_row(request.unfed_tokens)
        if not self.memory.reserve(request, row):
            return False
        self.engine.forward([row])
        request.note_fed(len(row.tokens))
        return True


def test_an_older_request_takes_the_pages_of_the_youngest() -> None:
    served = Served(20, 20, 20)
    assert served.feed(1) and served.feed(2)
    assert served.feed(0)
    assert served.memory.preempted == 1
    assert [request.kv.has_pages for request in served.admitted] == [True, True, False]
    assert served.admitted[2].unfed_tokens == 20


def test_a_younger_request_waits_for_the_older_ones() -> None:
    served = Served(40, 40)
    assert served.feed(0)
    assert not served.feed(1)
    assert served.memory.preempted == 0
    assert not served.memory.may_begin(served.admitted[1])


def test_a_request_alone_that_has_no_room_is_refused() -> None:
    served = Served(POOL_TOKENS + 1)
    assert served.memory.may_begin(served.admitted[0])
    with pytest.raises(PeerError) as refused:
        served.feed(0)
    assert refused.value.code == ErrorCode.OUT_OF_MEMORY


def test_nobody_begins_before_an_older_request_that_waits_for_room() -> None:
    served = Served(20, 60, 10)
    assert served.feed(0)
    assert [served.memory.may_begin(request) for request in served.admitted[1:]] == [False, False]
    served.requests.remove(served.admitted[1])
    assert served.memory.may_begin(served.admitted[2])
