"""What services have in common: whom they admit, refuse and let go, and that a failure hurts nobody else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_protocol.codec import Message
from cosine_protocol.draft import Busy, Release, Started
from cosine_protocol.errors import ErrorCode
from cosine_protocol.fields import decode_body
from cosine_protocol.request import Request
from cosine_protocol.stream import Account, Error, FinishReason
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import Cancel, Opened
from tests.node.drafter import test_service as drafter
from tests.node.peers import Bench, Caller, SickEngine, is_lost, request_of
from tests.node.verifier import test_service as verifier
from tests.scenes import Scene, Test, as_test

LONG: Final = 400


@dataclass(frozen=True, slots=True)
class Kind:
    """A service as its clients see it."""

    play: Callable[..., None]
    """Plays a scene at such a service; afterwards nothing may be left of any request."""
    ask: Callable[..., Message]
    """A request of a caller under a number, with changed fields if any."""
    end: Callable[[int], Message]
    """What ends a request."""
    foreign: Message
    """A message of another protocol."""
    unexpected: Message
    """A message of its own protocol that clients do not send."""


def _request(caller: Caller, **changes: Any) -> Request:
    """One that lasts."""
    return request_of(caller.peer_id, **{"max_new_tokens": LONG} | changes)


VERIFIER: Final = Kind(
    verifier.play,
    lambda caller, number, **changes: verifier.opening(_request(caller, **changes), number=number),
    Cancel,
    Release(1),
    Opened(1, 1),
)
DRAFTER: Final = Kind(
    drafter.play,
    lambda caller, number, **changes: drafter.start(_request(caller, **changes), number=number),
    Release,
    Cancel(1),
    Started(1, 0.5, 1),
)
KINDS: Final = {"verifier": VERIFIER, "drafter": DRAFTER}


def of_each(*shared: str, **options: Any) -> Callable[[Scene], Test]:
    """Make tests of a scene at each service, played with options and the parameters that `shared` names."""
    each = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)

    def play(scene: Scene, kind: Kind, **more: Any) -> None:
        kind.play(scene, **more, **options)

    return lambda scene: each(as_test(play, given=2, shared=("kind", *shared))(scene))


async def asked(kind: Kind, bench: Bench, caller: Caller, *numbers: int) -> None:
    """Ask for requests, which are served then."""
    before = bench.service.requests
    caller.post(*(kind.ask(caller, number) for number in numbers))
    await caller.hear_for(0.005)
    assert bench.service.requests == before + len(numbers)


@of_each()
async def test_a_stream_that_ends_frees_its_requests(bench: Bench, caller: Caller, kind: Kind) -> None:
    other = await bench.caller()
    await asked(kind, bench, other, 1, 2)
    await bench.hang_up(other)
    await caller.hear_for(0.1)
    assert (bench.service.requests, bench.engine.open_sequences) == (0, 0)


@of_each()
async def test_a_request_that_its_client_ends_is_accounted_for_and_gone(
    bench: Bench, caller: Caller, kind: Kind
) -> None:
    await asked(kind, bench, caller, 1)
    caller.post(kind.end(1))
    final = await caller.until(FinalMessage)
    assert decode_body(Account, final.body).reason == FinishReason.CANCELLED
    assert bench.service.requests == 0


@of_each()
async def test_a_number_in_use_is_refused_and_the_first_request_goes_on(
    bench: Bench, caller: Caller, kind: Kind
) -> None:
    await asked(kind, bench, caller, 1)
    caller.post(kind.ask(caller, 1))
    assert (await caller.until(Error, number=1)).code == ErrorCode.MALFORMED
    assert bench.service.requests == 1


@of_each()
async def test_an_unexpected_message_is_an_error_and_one_of_another_protocol_the_end_of_the_stream(
    bench: Bench, caller: Caller, kind: Kind
) -> None:
    await asked(kind, bench, caller, 1)
    caller.post(kind.unexpected)
    assert (await caller.until(Error)).code == ErrorCode.MALFORMED
    assert bench.service.requests == 1
    caller.post(kind.foreign)
    assert await is_lost(caller)


def is_refusal(message: Message, *, number: int) -> bool:
    return isinstance(message, Busy | Error) and message.number == number


@pytest.mark.parametrize("wanted", [2, 100])
@of_each(max_requests=2)
async def test_a_client_that_takes_all_places_gives_one_to_another(
    bench: Bench, caller: Caller, kind: Kind, wanted: int
) -> None:
    greedy = await bench.caller()
    greedy.post(*(kind.ask(greedy, number) for number in range(1, wanted + 1)))
    await greedy.hear_for(0.005)
    caller.post(kind.ask(caller, 1))
    assert not any(is_refusal(message, number=1) for message in await caller.hear_for(0.005))
    assert bench.service.requests == 2
    # Of those that were served the youngest is sent away, and may come again.
    [told] = [message for message in await greedy.hear_for(0.1) if is_refusal(message, number=2)]
    assert isinstance(told, Busy | Error) and told.retry_after_s is not None


@pytest.mark.parametrize(
    ("engine", "prompt"),
    [
        (SickEngine(sick_tokens=frozenset({50}), model_seed=3), (50, 1)),
        (ScriptedEngine(pool_tokens=64), (1,) * 60),
    ],
    ids=["bad logits", "no memory"],
)
@of_each("engine")
async def test_a_request_that_fails_does_so_alone(
    bench: Bench, caller: Caller, kind: Kind, prompt: tuple[int, ...]
) -> None:
    caller.post(kind.ask(caller, 1, max_new_tokens=20), kind.ask(caller, 2, prompt=prompt, max_new_tokens=20))
    heard = await caller.hear_for(0.1)
    assert any(is_refusal(message, number=2) for message in heard)
    assert not any(is_refusal(message, number=1) for message in heard)
    assert bench.service.requests == 1
