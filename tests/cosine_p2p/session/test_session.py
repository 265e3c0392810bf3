"""A session believes no verifier that breaks the stream's own rules, and goes on without any peer that fails."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.session.job import Job
from cosine_p2p.session.session import ASK_AGAIN_S, LATEST_WHY, MAX_WHY, Session, SessionCounts
from cosine_p2p.session.verifier_dials import DIAL_NEXT_S
from cosine_p2p.strategy.base import (
    Action,
    Committed,
    DraftersAllowed,
    DrafterStarted,
    Event,
    RecallDrafter,
    ReleaseDrafter,
    StrategyKind,
)
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.strategy.speed_trial import SpeedTrials, TrialPath
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_p2p.transport.link import Links
from cosine_p2p.trust.peer_memory import PeerFailures, PeerSpeeds
from cosine_protocol import messages as m
from cosine_protocol.codec import encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import ErrorCode, GenerationFailed, PeerError, PeerLost, RemoteProtocolError
from cosine_protocol.limits import HOME_AUTHOR
from cosine_protocol.messages import Transcript
from cosine_protocol.protocols import DRAFT, VERIFY
from cosine_protocol.statements import sign
from tests.cosine_p2p.samples import identity_of, record_of, request_of

VERIFIER = identity_of(1)
STATS = m.PassStats(0, 1, 60_000)
REQUEST = request_of("client", max_new_tokens=3)
D_0 = request_digest(REQUEST)
NUMBER = 4
DIAL_TIMEOUT_S = 3.0
Script = Callable[[int], Iterable[m.Message]]
Behaviour = Callable[[Channel, m.Message], Coroutine[None, None, None]]
_E = TypeVar("_E")


def commit(number: int, tokens: tuple[int, ...], *, after: tuple[int, ...] = (), authors: bytes = b"") -> m.Commit:
    digest = roll_digest(D_0, [*after, *tokens])
    return m.Commit(number, len(after), tokens, digest, authors or bytes(len(tokens)), STATS)


def signed(commit: m.Commit, *, first: int = 0, signer: int = 1, digest: bytes | None = None) -> m.Commit:
    """A commit that carries a transcript."""
    transcript = Transcript(first, commit.position + len(commit.tokens), digest or commit.digest)
    return replace(commit, transcript=sign(identity_of(signer), transcript, digest=D_0))


def final(number: int, tokens: tuple[int, ...], *, signer: int = 1) -> m.Final:
    body = encode_body(m.Account(number, 0, len(tokens), roll_digest(D_0, tokens), ()))
    return m.Final(body, identity_of(signer).sign(kind="final", digest=D_0, body=body))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a session: its tokens, its error, when it was over, and who is avoided from then on."""

    session: Session
    tokens: list[int]
    error: str
    seconds: float
    failures: frozenset[str]


NO_TRIALS = SpeedTrials(())


def outcome(script: Script) -> tuple[Session, list[int], str]:
    """Run a session against a verifier that answers `Open` with a script: its tokens and its error."""

    async def behave(channel: Channel, message: m.Message) -> None:
        if isinstance(message, m.Open):
            for reply in (m.Opened(message.number, 60_000), *script(message.number)):
                channel.post(reply)

    done = played({1: behave})
    return done.session, done.tokens, done.error


def played(
    verifiers: Mapping[int, Behaviour],
    drafters: Mapping[int, Behaviour] = MappingProxyType({}),
    *,
    strategy: StrategyKind = STRATEGIES["plain"],
    unreachable: tuple[int, ...] = (),
    lost_drafters: tuple[int, ...] = (),
    trials: SpeedTrials = NO_TRIALS,
    dials_held_back: int = 0,
    deadline_s: float = 60.0,
    asked_first: tuple[int, ...] | None = None,
    find_more: Callable[[], Coroutine[None, None, dict[str, float]]] | None = None,
) -> Outcome:
    """Run a session against scripted peers, by number. Verifiers are asked in order, `unreachable` ones first.

    Those `asked_first` may be others, of an earlier run; `find_more` finds the present ones.

    The first `dials_held_back` dials are not tried, as by a daemon that dialled a peer in vain a moment ago.
    """

    async def run() -> Outcome:
        silent = {identity_of(n).peer_id for n in unreachable}
        network = MemoryNetwork(is_reachable=lambda _, target: target not in silent, dial_timeout_s=DIAL_TIMEOUT_S)
        for protocol, peers in ((VERIFY, verifiers), (DRAFT, drafters)):
            for number, behave in peers.items():
                await network.join(identity_of(number).peer_id).serve(protocol, _handler(protocol, behave))
        transport = network.join("client")
        held_back = iter(range(dials_held_back))
        at_once = transport.dial

        async def dial(peer_id: str, protocol: str) -> Stream:
            if next(held_back, None) is not None:
                raise PeerLost(peer_id, "it could not be reached a moment ago", retry_after_s=2.0)
            return await at_once(peer_id, protocol)

        transport.dial = dial  # type: ignore[method-assign]  # as if its daemon were of that mind
        links = Links(transport)
        job = Job(
            number=NUMBER,
            deadline_s=deadline_s,
            request=REQUEST,
            strategy=strategy,
            verifiers={
                identity_of(n).peer_id: 0.0009
                for n in (asked_first if asked_first is not None else (*unreachable, *verifiers))
            },
            find_more=find_more,
            drafters=tuple(record_of(identity_of(n), now_s=0.0) for n in (*drafters, *lost_drafters)),
            trials=trials,
        )
        failures = PeerFailures()
        session = Session(job, links, _at_once, failures=failures, speeds=PeerSpeeds())
        tokens, error = list[int](), ""
        try:
            async for some in session.stream():
                tokens += some.tokens
        except GenerationFailed as failed:
            error = str(failed)
        seconds = asyncio.get_running_loop().time()
        await links.close()
        return Outcome(session, tokens, error, seconds, failures.avoided(seconds))

    return run_virtual(run())


def _handler(protocol: str, behave: Behaviour) -> Callable[[Stream], Coroutine[None, None, None]]:
    """Serve a stream by a behaviour: each message starts a task of its own."""

    async def handle(stream: Stream) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def answer(channel: Channel, message: m.Message) -> None:
            tasks.add(asyncio.ensure_future(behave(channel, message)))

        try:
            await serve_channel(stream, protocol, answer)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return handle


def timed(*replies: tuple[float, Callable[[int], m.Message]], seen: list[m.Message] | None = None) -> Behaviour:
    """Answer `Open` with `Opened`, then each reply after its pause, in seconds."""

    async def behave(channel: Channel, message: m.Message) -> None:
        if seen is not None:
            seen.append(message)
        if isinstance(message, m.Open):
            channel.post(m.Opened(message.number, 60_000))
            for pause_s, reply in replies:
                await asyncio.sleep(pause_s)
                channel.post(reply(message.number))

    return behave


_T = TypeVar("_T")


async def _at_once(check: Callable[[], _T], /) -> _T:
    await asyncio.sleep(0)
    return check()


class Scripted:
    """A strategy that records its events and answers each with what a function says."""

    def __init__(self, answer: Callable[[Event], Sequence[Action]] = lambda _: ()) -> None:
        self.events: list[Event] = []
        self._answer = answer

    def kind(self, **options: Any) -> StrategyKind:
        return StrategyKind(name="scripted", make=lambda _: self, **options)

    def on(self, event: Event, now_s: float) -> list[Action]:
        self.events.append(event)
        return list(self._answer(event))

    def received(self, kind: type[_E]) -> list[_E]:
        return [event for event in self.events if isinstance(event, kind)]


def test_a_stream_to_its_length() -> None:
    session, tokens, error = outcome(
        lambda n: (commit(n, (1,)), commit(n, (2, 3), after=(1,)), final(n, (1, 2, 3)))
    )
    assert (tokens, error, session.finish) == ([1, 2, 3], "", m.FinishReason.LENGTH)
    assert (session.counts.rounds, session.counts.near_ties) == (2, 2)
    assert session.counts.tokens_by_verifier == {VERIFIER.peer_id: 3}


def test_who_signs_nothing_keeps_the_request_and_loses_its_place() -> None:
    ends: tuple[float, Callable[[int], m.Message]] = (0.0, lambda n: final(n, (1, 2, 3)))
    silent = played({1: timed((0.0, lambda n: commit(n, (1, 2, 3))), ends)})
    honest = played({1: timed((0.0, lambda n: signed(commit(n, (1, 2, 3)))), ends)})
    assert silent.tokens == honest.tokens == [1, 2, 3]
    assert silent.failures == {VERIFIER.peer_id} and not honest.failures


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (lambda n: (commit(n, (1,), after=(5,)),), "does not continue"),
        (lambda n: (commit(n, ()),), "does not continue"),
        (lambda n: (commit(n, (1, 2, 3, 4)),), "past the length"),
        (lambda n: (commit(n, (1,), authors=b"\x01"),), "authors"),
        (lambda n: (commit(n, (1, 2), authors=b"\x00"),), "authors"),
        (lambda n: (m.Commit(n, 0, (1,), bytes(16), b"\x00", STATS),), "digest"),
        (lambda n: (commit(n, (1,)), final(n, (1,))), "before its end"),
        (lambda n: (commit(n, (1, 9)), final(n, (1,))), "before its end"),
        (lambda n: (commit(n, (1, 9)), final(n, (1, 9), signer=2)), "signature"),
        (lambda n: (signed(commit(n, (1,)), signer=2),), "the signature of a transcript"),
        (lambda n: (signed(commit(n, (1,)), digest=bytes(16)),), "a transcript is not that of the stream"),
        (lambda n: (signed(commit(n, (1,)), first=1),), "a transcript is not that of the stream"),
        (lambda n: (m.Cancel(n),), "unexpected Cancel"),
        (lambda n: (m.Error(n, 7, "full up", 2.0),), "refused: full up"),
        (lambda n: (), "made no progress"),
    ],
)
def test_what_a_verifier_may_not_do_is_named(script: Script, reason: str) -> None:
    session, _, error = outcome(script)
    assert reason in error
    assert VERIFIER.peer_id in error
    assert session.finish is None


def test_a_verifier_that_leaves_after_the_last_token_has_done_its_work() -> None:
    script = timed((0.0, lambda n: commit(n, (1, 2, 3))), (0.0, lambda n: m.Error(n, 9, "shutting down", None)))
    done = played({1: script, 2: timed()})
    assert (done.tokens, done.error, done.session.finish) == ([1, 2, 3], "", m.FinishReason.LENGTH)


def test_an_account_that_never_comes_is_not_waited_for() -> None:
    done = played({1: timed((0.0, lambda n: commit(n, (1, 9))))})
    assert (done.tokens, done.session.finish) == ([1, 9], m.FinishReason.EOS)
    assert done.seconds < 6


@pytest.mark.parametrize(("is_opened", "words"), [(False, "had no place for the request"), (True, "its timeout")])
def test_a_request_that_ran_out_of_time_says_what_it_waited_for(is_opened: bool, words: str) -> None:
    async def behave(channel: Channel, message: m.Message) -> None:
        if isinstance(message, m.Open) and is_opened:
            channel.post(m.Opened(message.number, 60_000))

    assert words in played({1: behave}, deadline_s=2.0).error


def test_verifiers_that_cannot_be_dialled_are_named() -> None:
    done = played({}, unreachable=(8, 7))
    assert done.tokens == []
    for number in (8, 7):
        assert f"{identity_of(number).peer_id} was lost: no answer to our dial" in done.error


def test_many_that_answer_no_dial_cost_little_more_than_one() -> None:
    """Twelve tarpits in front of an honest verifier are dialled side by side, and avoided from then on."""
    script = timed((0.0, lambda n: signed(commit(n, (1, 2, 3)))), (0.0, lambda n: final(n, (1, 2, 3))))
    one = played({1: script}, unreachable=(20,))
    done = played({1: script}, unreachable=tuple(range(20, 32)))
    assert one.tokens == done.tokens == [1, 2, 3]
    assert one.seconds < 1.0 and done.seconds <= 12 * DIAL_NEXT_S
    assert one.failures == {identity_of(20).peer_id}
    assert len(done.failures) >= 8


def test_an_overloaded_verifier_is_asked_again_when_it_said() -> None:
    opened = 0

    async def behave(channel: Channel, message: m.Message) -> None:
        nonlocal opened
        if isinstance(message, m.Open):
            opened += 1
            busy = timed((0.0, lambda n: m.Error(n, 7, "full up", 2.5)))
            free = timed((0.0, lambda n: commit(n, (1, 2, 3))), (0.0, lambda n: final(n, (1, 2, 3))))
            await (busy if opened == 1 else free)(channel, message)

    done = played({1: behave})
    assert (done.tokens, done.error, opened) == ([1, 2, 3], "", 2)
    assert 2.5 <= done.seconds < 3


def test_a_verifier_that_is_not_dialled_yet_is_waited_for_where_nobody_else_is() -> None:
    script = timed((0.0, lambda n: commit(n, (1, 2, 3))), (0.0, lambda n: final(n, (1, 2, 3))))
    done = played({1: script}, dials_held_back=3)
    assert (done.tokens, done.error) == ([1, 2, 3], "")
    assert 6.0 <= done.seconds < 7.0
    given_up = played({1: script}, dials_held_back=99)
    assert given_up.tokens == []
    assert "it could not be reached a moment ago" in given_up.error


def test_the_only_verifier_is_asked_to_go_on_when_its_connection_was_lost() -> None:
    opened: list[m.Open] = []

    async def behave(channel: Channel, message: m.Message) -> None:
        if isinstance(message, m.Open):
            opened.append(message)
            if len(opened) == 1:
                await timed((0.0, lambda n: commit(n, (1,))))(channel, message)
                await asyncio.sleep(0.1)
                await channel.__aexit__()
            else:
                rest = timed((0.0, lambda n: commit(n, (2, 3), after=(1,))), (0.0, lambda n: final(n, (1, 2, 3))))
                await rest(channel, message)

    done = played({1: behave})
    assert (done.tokens, done.error) == ([1, 2, 3], "")
    assert [asked.committed for asked in opened] == [(), (1,)]
    assert ASK_AGAIN_S <= done.seconds < ASK_AGAIN_S + 1.0


def drafting(seen: list[m.Message], *, reads_for_s: float = 0.0) -> Behaviour:
    """A drafter that records what it hears and starts after a while."""

    async def behave(channel: Channel, message: m.Message) -> None:
        seen.append(message)
        if isinstance(message, m.Start):
            await asyncio.sleep(reads_for_s)
            channel.post(m.Started(message.number, 1.0, 6_000))

    return behave


SLOW_VERIFIER = timed(
    (0.1, lambda n: commit(n, (1,))),
    (1.0, lambda n: commit(n, (2,), after=(1,))),
    (1.0, lambda n: commit(n, (3,), after=(1, 2))),
    (0.0, lambda n: final(n, (1, 2, 3))),
)


def test_a_recalled_drafter_starts_from_all_that_is_committed() -> None:
    seen: list[m.Message] = []

    def answer(event: Event) -> Sequence[Action]:
        match event:
            case DrafterStarted(author) if not any(isinstance(s, m.Release) for s in seen):
                return [ReleaseDrafter(author, "for now")]
            case Committed(position=1):
                return [RecallDrafter(1, "again")]
            case _:
                return []

    strategy = Scripted(answer)
    done = played({1: SLOW_VERIFIER}, {5: drafting(seen)}, strategy=strategy.kind())
    kinds = [type(message) for message in seen]
    assert kinds[:3] == [m.Start, m.Release, m.Start]
    assert [s.committed for s in seen if isinstance(s, m.Start)] == [(), (1, 2)]
    assert len(strategy.received(DrafterStarted)) == 2
    assert done.session.counts.why == ["code: dropped, for now", "code: asked again, again"]


COUNTS = (3, 0)


def slower_with_drafters(verifier: int) -> SpeedTrials:
    """What a client remembers for which drafters did not pay at a verifier."""
    trials = SpeedTrials(COUNTS)
    trial = trials.find(TrialPath.of(identity_of(verifier).peer_id, REQUEST.sampling.temperature))
    assert trial is not None
    trial.begin_without()
    return trials


def test_drafters_that_measured_slower_are_not_even_asked() -> None:
    seen: list[m.Message] = []
    strategy = Scripted()
    kind = strategy.kind(drafter_counts=COUNTS)
    done = played({1: SLOW_VERIFIER}, {5: drafting(seen)}, strategy=kind, trials=slower_with_drafters(1))
    assert not seen
    assert strategy.received(DraftersAllowed) == [DraftersAllowed(0)]
    assert done.session.counts.why == ["drafters: none; measured here against that: nothing yet"]


def test_what_was_measured_of_one_verifier_means_nothing_to_the_next() -> None:
    seen: list[m.Message] = []
    strategy = Scripted()
    kind = strategy.kind(drafter_counts=COUNTS)
    done = played(
        {
            1: timed((0.1, lambda n: commit(n, (1,))), (0.1, lambda n: m.Error(n, 0, "broken", None))),
            2: SLOW_VERIFIER,
        },
        {5: drafting(seen)},
        strategy=kind,
        trials=slower_with_drafters(1),
    )
    assert done.session.counts.tried
    assert strategy.received(DraftersAllowed) == [DraftersAllowed(0), DraftersAllowed(3)]
    assert [type(message) for message in seen][:1] == [m.Start]


@pytest.mark.parametrize(("break_even", "asked"), [(None, True), (100, True), (440, False), (950, False)])
def test_drafters_are_asked_once_a_new_verifier_has_told_what_drafts_need_to_pay(
    break_even: int | None, asked: bool
) -> None:
    seen: list[m.Message] = []

    async def behave(channel: Channel, message: m.Message) -> None:
        if isinstance(message, m.Open):
            assert not seen
            channel.post(m.Opened(message.number, 10_000, break_even))
            await asyncio.sleep(0.5)
            channel.post(commit(message.number, (1, 2, 3)))
            channel.post(final(message.number, (1, 2, 3)))

    kind = Scripted().kind(drafter_counts=COUNTS)
    played({1: behave}, {5: drafting(seen)}, strategy=kind, trials=SpeedTrials(COUNTS))
    assert bool(seen) is asked


def test_a_commit_is_counted_by_who_drafted_it() -> None:
    counts = SessionCounts()
    counts.note_commit("v", bytes([1, HOME_AUTHOR, 2, 0]), m.PassStats(0, 1, 1, 7))
    counts.note_commit("v", bytes([0]), m.PassStats(0, 0, 1, 9))
    assert (counts.rounds, counts.near_ties, counts.accepted, counts.home_tokens) == (2, 1, 2, 1)
    assert counts.cached_tokens == 7
    assert counts.tokens_by_verifier == {"v": 5}


def test_the_first_and_the_latest_reasons_are_kept() -> None:
    counts, lines = SessionCounts(), [str(number) for number in range(MAX_WHY + 1)]
    for line in lines:
        counts.note_line(line)
    assert (counts.why, list(counts.latest_why)) == (lines[:MAX_WHY], lines[-LATEST_WHY:])
    assert counts.decisions == len(lines)


def test_each_failure_is_told_once_in_words() -> None:
    counts = SessionCounts()
    assert counts.nobody_left("").startswith("No verifier was found")
    for error in (PeerError(ErrorCode.OVERLOADED, "full"), PeerLost("v", "gone"), RemoteProtocolError("odd")):
        counts.note_tried("v", error)
        counts.note_tried("v", error)
    sentence = "No verifier could finish the request: late. Tried: v refused: full; v was lost: gone; "
    assert counts.nobody_left(": late") == sentence + "v broke the protocol: odd."


async def serve_all(channel: Channel, message: m.Message) -> None:
    if isinstance(message, m.Open):
        after = message.committed
        for token in (5, 6, 7)[len(after) :]:
            after = (*after, token)
            reply = m.Opened(message.number, 60_000) if len(after) == len(message.committed) + 1 else None
            for each in (reply, commit(message.number, (token,), after=after[:-1])):
                if each is not None:
                    channel.post(each)
        channel.post(final(message.number, (5, 6, 7), signer=2))


async def leave_after_one(channel: Channel, message: m.Message) -> None:
    if isinstance(message, m.Open):
        channel.post(m.Opened(message.number, 60_000))
        channel.post(commit(message.number, (5,)))
        channel.post(m.Error(message.number, ErrorCode.INTERNAL, "it goes", None))


def found_after(seconds: float, *numbers: int) -> Callable[[], Coroutine[None, None, dict[str, float]]]:
    async def find() -> dict[str, float]:
        await asyncio.sleep(seconds)
        return {identity_of(number).peer_id: 0.0009 for number in numbers}

    return find


@pytest.mark.parametrize("behave", [None, leave_after_one], ids=["gone", "lost in the middle"])
def test_where_verifiers_of_an_earlier_run_fail_those_of_now_go_on(behave: Behaviour | None) -> None:
    first = {} if behave is None else {1: behave}
    done = played({**first, 2: serve_all}, asked_first=(1,), find_more=found_after(1.0, 2))
    assert (done.tokens, done.error) == ([5, 6, 7], "")
    assert list(done.session.job.verifiers) == [identity_of(1).peer_id, identity_of(2).peer_id]
    assert done.seconds < 1.5


def test_one_that_answers_no_dial_is_not_waited_for_longer_than_others() -> None:
    done = played({2: serve_all}, unreachable=(1,), asked_first=(1,), find_more=found_after(0.2, 2))
    assert (done.tokens, done.error) == ([5, 6, 7], "")
    assert done.seconds < DIAL_NEXT_S + 0.1


def test_one_that_failed_is_tried_again_as_it_is_found_now() -> None:
    """It may have moved since: the first dial went to where it was."""
    done = played({2: serve_all}, asked_first=(2,), find_more=found_after(0.5, 2), dials_held_back=1)
    assert (done.tokens, done.error) == ([5, 6, 7], "")
    assert done.seconds < 1.0


def test_nobody_found_in_an_earlier_run_or_now_is_an_error() -> None:
    done = played({}, asked_first=(1,), find_more=found_after(0.5))
    assert done.error.startswith("No verifier could finish the request")
    assert done.seconds < 1.0
