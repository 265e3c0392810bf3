"""Drafters that see the end of a prompt draft as ever, and are sent nothing of the rest."""

import random
from typing import Any, Final

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_protocol.request import Sampling
from tests.swarm.eavesdropping import OLD_FEATURES, Eavesdroppers
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, draft_engine, plain_stream, target_engine
from tests.thoroughness import quick_first

TOKENS: Final = 30
SECRET: Final = VOCAB_TOKENS - 1
"""A token that only the beginning of the prompt holds."""
WINDOW: Final = 5
"""More than the three tokens that scripted engines look at."""


def prompt_of(rng: random.Random, *, tokens: int = 30) -> str:
    return LetterCodec().decode([SECRET] * 20 + [rng.randrange(SECRET) for _ in range(tokens - 20)])


async def generated(
    prompt: str, sampling: Sampling, ears: Eavesdroppers, *, fidelity: float = 1.0, old: int = 0, **options: Any
) -> Generation:
    async with SimulatedSwarm(one_way_s=0.05) as swarm:
        await swarm.verifier(target_engine())
        await swarm.drafter(draft_engine(fidelity), domain="code")
        await swarm.drafter(draft_engine(0.5, 1), domain="math")
        for number in range(old):
            await swarm.drafter_with(ears.old_drafter, domain=f"old-{number}")
        client = await swarm.client(**{"prompt_window_tokens": WINDOW} | options)
        generation = await client.generate(
            prompt, max_new_tokens=TOKENS, temperature=sampling.temperature, seed=sampling.seed
        )
        await assert_freed(swarm)
        return generation


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("coordination", ["client", "verifier"])
@pytest.mark.parametrize("seed", quick_first(range(3)))
def test_the_text_is_the_target_s_and_no_drafter_gets_more_than_the_window(
    coordination: str, temperature: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"windows {coordination} {temperature} {seed}")
    prompt, sampling = prompt_of(rng), Sampling(temperature=temperature, seed=rng.getrandbits(64))
    ears = Eavesdroppers(monkeypatch)
    done = run_virtual(generated(prompt, sampling, ears, coordination=coordination))
    assert done.token_ids == plain_stream(prompt, sampling, tokens=TOKENS)
    assert done.coordinator == coordination
    assert ears.starts
    for start in ears.starts:
        assert start.request.prompt == tuple(LetterCodec().encode(prompt)[-WINDOW:])
        assert start.request.nonce == bytes(16) and start.d_0 is not None
    # The right drafter's noise is that of the right positions, or it would be wrong at a temperature.
    assert done.accepted > TOKENS / 3
    assert {report.domain for report in done.drafters if report.accepted} >= {"code"}


@pytest.mark.parametrize("coordination", ["client", "verifier"])
def test_a_stranger_that_says_it_knows_no_windows_is_shown_no_prompt(
    coordination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(random.Random("old"))
    ears = Eavesdroppers(monkeypatch)
    done = run_virtual(generated(prompt, Sampling(), ears, old=2, coordination=coordination))
    assert done.token_ids == plain_stream(prompt, Sampling(), tokens=TOKENS)
    assert done.accepted and not ears.old_starts
    assert all(SECRET not in start.request.prompt for start in ears.starts)


def test_a_verifier_that_knows_no_windows_coordinates_whole_prompts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(random.Random("old verifier"))
    monkeypatch.setattr("cosine_p2p.transport.channel.FEATURES", OLD_FEATURES)
    for window, coordinator in ((WINDOW, "client"), (0, "verifier")):
        ears = Eavesdroppers(monkeypatch)
        options: dict[str, Any] = {"coordination": "verifier", "prompt_window_tokens": window}
        done = run_virtual(generated(prompt, Sampling(), ears, **options))
        assert done.coordinator == coordinator
        assert done.token_ids == plain_stream(prompt, Sampling(), tokens=TOKENS)


def test_whom_the_user_trusts_gets_the_whole_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(random.Random("trusted"))

    async def run(ears: Eavesdroppers) -> Generation:
        async with SimulatedSwarm() as swarm:
            peers = [await swarm.verifier(target_engine()), await swarm.drafter(draft_engine(0.9))]
            client = await swarm.client(trust=tuple(peer.identity.peer_id for peer in peers))
            return await client.generate(prompt, max_new_tokens=TOKENS)

    ears = Eavesdroppers(monkeypatch)
    run_virtual(run(ears))
    assert [start.request.prompt for start in ears.starts] == [tuple(LetterCodec().encode(prompt))]


def test_strangers_get_the_last_256_tokens_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_of(random.Random("default"), tokens=400)
    ears = Eavesdroppers(monkeypatch)
    done = run_virtual(generated(prompt, Sampling(), ears, prompt_window_tokens=None))
    assert done.token_ids == plain_stream(prompt, Sampling(), tokens=TOKENS)
    assert {len(start.request.prompt) for start in ears.starts} == {256}
