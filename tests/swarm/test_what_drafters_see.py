"""Tests of the part of a request that drafters receive."""

import random
from typing import Any, Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.drafter.service import DrafterService
from cosine_p2p.request.results import Generation
from cosine_p2p.transport.channel import Channel
from cosine_protocol.codec import Message
from cosine_protocol.draft import MANDATES, Start
from cosine_protocol.request import Sampling
from tests.scenes import in_virtual_time
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, draft_engine, plain_stream, target_engine
from tests.thoroughness import quick_first

TOKENS: Final = 30
SECRET: Final = VOCAB_TOKENS - 1
"""A token that occurs only at the beginning of the prompt."""
WINDOW: Final = 5
"""More than the three tokens that scripted engines depend on."""
OLD_FEATURES: Final = (MANDATES,)
"""The features of peers without prompt windows."""
BOTH_WAYS: Final = pytest.mark.parametrize("coordination", ["client", "verifier"])


def prompt_of(rng: random.Random, *, tokens: int = 30) -> str:
    return LetterCodec().decode([SECRET] * 20 + [rng.randrange(SECRET) for _ in range(tokens - 20)])


PROMPT: Final = prompt_of(random.Random("seen"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Start]:
    """The requests that drafters have received."""
    starts: list[Start] = []
    receive = DrafterService._receive

    def note(service: DrafterService, channel: Channel, message: Message) -> None:
        if isinstance(message, Start):
            starts.append(message)
        receive(service, channel, message)

    monkeypatch.setattr(DrafterService, "_receive", note)
    return starts


@in_virtual_time
async def generated(
    *,
    prompt: str = PROMPT,
    sampling: Sampling = Sampling(),  # noqa: B008  # frozen
    domains: tuple[str, ...] = ("code",),
    fidelity: float = 0.9,
    trusts: bool = False,
    **options: Any,
) -> Generation:
    """Generate a text and check it."""
    async with SimulatedSwarm(one_way_s=0.05) as swarm:
        members = [await swarm.verifier(target_engine())]
        for number, domain in enumerate(domains):
            engine = draft_engine(0.5 if number else fidelity, number)
            members.append(await swarm.drafter(engine, domain=domain))
        trusted = {"trust": tuple(member.identity.peer_id for member in members)} if trusts else {}
        client = await swarm.client(**{"prompt_window_tokens": WINDOW} | trusted | options)
        sampled: dict[str, Any] = {"temperature": sampling.temperature, "seed": sampling.seed}
        done = await client.generate(prompt, max_new_tokens=TOKENS, **sampled)
        await assert_freed(swarm)
        assert done.token_ids == plain_stream(prompt, sampling, tokens=TOKENS)
        return done


@pytest.mark.parametrize("temperature", quick_first([0.8, 0.0]))
@BOTH_WAYS
def test_no_drafter_gets_more_than_the_window(coordination: str, temperature: float, told: list[Start]) -> None:
    rng = random.Random(f"windows {coordination} {temperature}")
    prompt, sampling = prompt_of(rng), Sampling(temperature=temperature, seed=rng.getrandbits(64))
    options: dict[str, Any] = {"domains": ("code", "math"), "fidelity": 1.0, "coordination": coordination}
    done = generated(prompt=prompt, sampling=sampling, **options)
    assert done.swarm.coordinator == coordination
    assert told
    for start in told:
        assert start.request.prompt == tuple(LetterCodec().encode(prompt)[-WINDOW:])
        assert start.request.nonce == bytes(16) and start.d_0 is not None
    # The right drafter's noise is that of the right positions, or it would be wrong at a temperature.
    assert done.swarm.accepted > TOKENS / 3
    assert {report.domain for report in done.swarm.drafters if report.accepted} >= {"code"}


def test_a_verifier_without_windows_coordinates_whole_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.transport.channel.FEATURES", OLD_FEATURES)
    for window, coordinator in ((WINDOW, "client"), (0, "verifier")):
        options: dict[str, Any] = {"coordination": "verifier", "prompt_window_tokens": window}
        assert generated(**options).swarm.coordinator == coordinator


@pytest.mark.parametrize(("trusts", "seen_tokens"), [(True, 400), (False, 256)])
def test_strangers_get_256_tokens_and_trusted_peers_all(trusts: bool, seen_tokens: int, told: list[Start]) -> None:
    prompt = prompt_of(random.Random("default"), tokens=400)
    generated(prompt=prompt, trusts=trusts, prompt_window_tokens=None)
    assert {start.request.prompt for start in told} == {tuple(LetterCodec().encode(prompt)[-seen_tokens:])}
