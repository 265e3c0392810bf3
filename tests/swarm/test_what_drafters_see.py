"""Tests of the part of a request that drafters receive, and of learning drafters."""

import random
from typing import Any, Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.drafter.service import DrafterService
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.channel import Channel, serve_channel
from cosine_protocol import messages as m
from cosine_protocol.codec import FrameDecoder, decode, decode_body, encode, encode_frame
from cosine_protocol.identity import Identity
from cosine_protocol.messages import Mandate
from cosine_protocol.protocols import DRAFT, MANDATES
from cosine_protocol.request import Sampling
from cosine_train.learning.streams import StreamRecords, VerifiedStream
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, draft_engine, plain_stream, target_engine
from tests.thoroughness import quick_first, quick_rows

TOKENS: Final = 30
SECRET: Final = VOCAB_TOKENS - 1
"""A token that occurs only at the beginning of the prompt."""
WINDOW: Final = 5
"""More than the three tokens that scripted engines depend on."""
OLD_FEATURES: Final = (MANDATES,)
"""The features of peers without prompt windows and learning."""
BOTH_WAYS: Final = pytest.mark.parametrize("coordination", ["client", "verifier"])


def prompt_of(rng: random.Random, *, tokens: int = 30) -> str:
    return LetterCodec().decode([SECRET] * 20 + [rng.randrange(SECRET) for _ in range(tokens - 20)])


PROMPT: Final = prompt_of(random.Random("seen"))


class OldStream:
    """A stream of a peer with an older version."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()
        self.peer_id = stream.peer_id
        self.read, self.close, self.note_flood = stream.read, stream.close, stream.note_flood

    async def write(self, data: bytes) -> None:
        frames = []
        for message in map(decode, self._decoder.feed(data)):
            if isinstance(message, m.Hello):
                message = m.Hello(message.version, OLD_FEATURES, message.agent)
            frames.append(encode_frame(encode(message)))
        await self._stream.write(b"".join(frames))


class Eavesdroppers:
    """Messages to drafters of this version and of an older one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[m.Message] = []
        self.told_old: list[m.Message] = []
        receive = DrafterService._receive

        def note(service: DrafterService, channel: Channel, message: m.Message) -> None:
            self.told.append(message)
            receive(service, channel, message)

        monkeypatch.setattr(DrafterService, "_receive", note)

    def old_drafter(self, identity: Identity) -> Any:
        async def handle(stream: Stream) -> None:
            await serve_channel(OldStream(stream), DRAFT, lambda _, message: self.told_old.append(message))

        return handle

    @property
    def starts(self) -> list[m.Start]:
        return [message for message in self.told if isinstance(message, m.Start)]

    @property
    def old_starts(self) -> list[m.Start]:
        return [message for message in self.told_old if isinstance(message, m.Start)]


@pytest.fixture
def ears(monkeypatch: pytest.MonkeyPatch) -> Eavesdroppers:
    return Eavesdroppers(monkeypatch)


def generated(
    ears: Eavesdroppers,
    *,
    prompt: str = PROMPT,
    sampling: Sampling = Sampling(),  # noqa: B008  # frozen
    domains: tuple[str, ...] = ("code",),
    fidelity: float = 0.9,
    old: int = 0,
    kept: list[VerifiedStream] | None = None,
    trusts: bool = False,
    **options: Any,
) -> Generation:
    """Generate a text and check it. The first drafter learns if `kept` is given."""

    async def run() -> Generation:
        async with SimulatedSwarm(one_way_s=0.05) as swarm:
            members = [await swarm.verifier(target_engine())]
            for number, domain in enumerate(domains):
                observer = StreamRecords(kept.append) if kept is not None and not number else None
                engine = draft_engine(0.5 if number else fidelity, number)
                members.append(await swarm.drafter(engine, domain=domain, observer=observer))
            for number in range(old):
                await swarm.drafter_with(ears.old_drafter, domain=f"old-{number}")
            trusted = {"trust": tuple(member.identity.peer_id for member in members)} if trusts else {}
            client = await swarm.client(**{"prompt_window_tokens": WINDOW} | trusted | options)
            sampled: dict[str, Any] = {"temperature": sampling.temperature, "seed": sampling.seed}
            done = await client.generate(prompt, max_new_tokens=TOKENS, **sampled)
            await assert_freed(swarm)
            assert done.token_ids == plain_stream(prompt, sampling, tokens=TOKENS)
            return done

    return run_virtual(run())


@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
@BOTH_WAYS
def test_no_drafter_gets_more_than_the_window(coordination: str, temperature: float, ears: Eavesdroppers) -> None:
    rng = random.Random(f"windows {coordination} {temperature}")
    prompt, sampling = prompt_of(rng), Sampling(temperature=temperature, seed=rng.getrandbits(64))
    options: dict[str, Any] = {"domains": ("code", "math"), "fidelity": 1.0, "coordination": coordination}
    done = generated(ears, prompt=prompt, sampling=sampling, **options)
    assert done.coordinator == coordination
    assert ears.starts
    for start in ears.starts:
        assert start.request.prompt == tuple(LetterCodec().encode(prompt)[-WINDOW:])
        assert start.request.nonce == bytes(16) and start.d_0 is not None
    # The right drafter's noise is that of the right positions, or it would be wrong at a temperature.
    assert done.accepted > TOKENS / 3
    assert {report.domain for report in done.drafters if report.accepted} >= {"code"}


@BOTH_WAYS
def test_a_stranger_that_says_it_knows_no_windows_is_shown_no_prompt(
    coordination: str, ears: Eavesdroppers
) -> None:
    assert generated(ears, old=2, coordination=coordination).accepted and not ears.old_starts
    assert all(SECRET not in start.request.prompt for start in ears.starts)


def test_a_verifier_that_knows_no_windows_coordinates_whole_prompts_only(
    ears: Eavesdroppers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cosine_p2p.transport.channel.FEATURES", OLD_FEATURES)
    for window, coordinator in ((WINDOW, "client"), (0, "verifier")):
        options: dict[str, Any] = {"coordination": "verifier", "prompt_window_tokens": window}
        assert generated(ears, **options).coordinator == coordinator


@pytest.mark.parametrize(("trusts", "seen_tokens"), [(True, 400), (False, 256)])
def test_strangers_get_the_last_256_tokens_and_whom_the_user_trusts_gets_all(
    trusts: bool, seen_tokens: int, ears: Eavesdroppers
) -> None:
    prompt = prompt_of(random.Random("default"), tokens=400)
    generated(ears, prompt=prompt, trusts=trusts, prompt_window_tokens=None)
    assert {start.request.prompt for start in ears.starts} == {tuple(LetterCodec().encode(prompt)[-seen_tokens:])}


def told(start: m.Start) -> bool | None:
    """Return whether a drafter may keep a text, by the mandate if there is one, else by the message."""
    if start.mandate is None:
        return start.shares_feedback
    mandate: Mandate = decode_body(Mandate, start.mandate.body)
    return mandate.shares_feedback


@BOTH_WAYS
@pytest.mark.parametrize(
    ("shares", "window"), quick_rows([(None, 5), (True, 5), (False, 5), (True, 0), (None, 0)], 2)
)
def test_a_drafter_keeps_the_text_with_its_guesses_where_the_client_allows_it(
    shares: bool | None, window: int, coordination: str, ears: Eavesdroppers
) -> None:
    kept: list[VerifiedStream] = []
    options: dict[str, Any] = {"coordination": coordination, "prompt_window_tokens": window}
    done = generated(ears, kept=kept, share_feedback=shares, **options)
    assert done.coordinator == coordination
    assert ears.starts and all((start.mandate is not None) == (coordination == "verifier") for start in ears.starts)
    assert {told(start) for start in ears.starts} == {True if shares else None}
    assert len(kept) == bool(shares)
    for stream in kept:
        assert stream.tokens == done.token_ids
        assert stream.prompt == LetterCodec().encode(PROMPT)[-window:]
        made = [(guess, token) for guess, token in zip(stream.guesses, stream.tokens, strict=True) if guess >= 0]
        assert sum(guess == token for guess, token in made) > 0.7 * TOKENS
