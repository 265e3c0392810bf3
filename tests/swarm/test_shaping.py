"""What shapes the scores of tokens is part of the request: with any drafters the text is that of plain decoding."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_p2p.request.results import Generation
from cosine_p2p.transport import channel
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Sampling, Shaping, TokenBias
from tests.swarm.reference import VOCAB_TOKENS, assert_freed, draft_engine, plain_stream, prompt_of, target_engine
from tests.thoroughness import dear_examples

TOKENS = 24
LETTERS = LetterCodec()
A_TOKEN = st.integers(0, VOCAB_TOKENS - 1)
WORD = st.lists(A_TOKEN, min_size=1, max_size=2).map(LETTERS.decode)

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "presence_penalty": st.sampled_from([1.5, -1.0]),
        "frequency_penalty": st.sampled_from([0.5, -0.25]),
        "logit_bias": st.dictionaries(A_TOKEN, st.floats(-4, 4, width=32), min_size=1, max_size=8),
        "bad_words": st.lists(WORD, min_size=1, max_size=12),
        "min_tokens": st.integers(1, TOKENS),
        "ignore_eos": st.just(True),
        "stop_token_ids": st.lists(A_TOKEN, max_size=2),
        "repetition_penalty": st.just(1.3),
        "temperature": st.sampled_from([0.7, 1.2]),
    },
)


async def generated(
    prompt: str, *, fidelities: tuple[float, ...], eos: tuple[int, ...], **options: Any
) -> Generation:
    async with SimulatedSwarm(one_way_s=0.005, eos=eos) as swarm:
        await swarm.verifier(target_engine())
        for number, fidelity in enumerate(fidelities):
            await swarm.drafter(draft_engine(fidelity, number), domain=f"domain-{number}")
        client = await swarm.client(timeout_s=60.0)
        done = await client.generate(prompt, max_new_tokens=TOKENS, seed=7, **options)
        await assert_freed(swarm)
        return done


def plain(prompt: str, *, eos: tuple[int, ...], options: dict[str, Any]) -> tuple[int, ...]:
    """The target's own text, with what the options mean for its sampler."""
    words = {LETTERS.encode(word.lstrip()) for word in options.get("bad_words", ())}
    ends = (*(() if options.get("ignore_eos") else eos), *options.get("stop_token_ids", ()))
    shaping = Shaping(
        presence_penalty=options.get("presence_penalty", 0.0),
        frequency_penalty=options.get("frequency_penalty", 0.0),
        logit_bias=tuple(TokenBias(*each) for each in options.get("logit_bias", {}).items()),
        bad_words=tuple(words),
        min_tokens=options.get("min_tokens", 0),
        held_back=ends,
    )
    sampling = Sampling(
        temperature=options.get("temperature", 0.0),
        repetition_penalty=options.get("repetition_penalty", 1.0),
        seed=7,
        shaping=shaping,
    )
    return plain_stream(prompt, sampling, tokens=TOKENS, eos=ends)


@given(options=OPTIONS, fidelities=st.lists(st.sampled_from([0.3, 0.8, 1.0]), max_size=2), seed=st.integers(0, 99))
@dear_examples()
def test_with_any_options_and_drafters_the_text_is_that_of_plain_decoding(
    options: dict[str, Any], fidelities: list[float], seed: int
) -> None:
    prompt = prompt_of(random.Random(seed))
    eos = (seed % VOCAB_TOKENS, (seed + 9) % VOCAB_TOKENS)
    expected = plain(prompt, eos=eos, options=options)
    for strategy in ("plain", "cosine"):
        done = run_virtual(generated(prompt, fidelities=tuple(fidelities), eos=eos, strategy=strategy, **options))
        assert done.token_ids == expected


def test_good_drafts_are_accepted_though_scores_are_shaped() -> None:
    """A drafter shapes its own scores alike."""
    prompt = prompt_of(random.Random("shaped"))
    options = {"presence_penalty": 1.0, "frequency_penalty": 0.5, "logit_bias": {3: 2.0}}
    done = run_virtual(generated(prompt, fidelities=(1.0,), eos=(), **options))
    assert done.accepted > TOKENS // 2


SHAPED: dict[str, Any] = {
    "presence_penalty": 1.0,
    "frequency_penalty": 0.5,
    "logit_bias": {3: 2.0, 7: -4.0},
    "bad_words": ["5", "91"],
    "min_tokens": 9,
    "temperature": 0.8,
}


@pytest.mark.parametrize("coordination", ["client", "verifier"])
def test_another_verifier_goes_on_and_one_more_audits_it_all(coordination: str) -> None:
    prompt, eos = prompt_of(random.Random("failover")), (11,)

    async def run() -> tuple[Generation, list[str]]:
        async with SimulatedSwarm(one_way_s=0.005, eos=eos) as swarm:
            verifiers = [await swarm.verifier(target_engine(), home_engine=draft_engine(0.7)) for _ in range(3)]
            await swarm.drafter(draft_engine(0.9))
            client = await swarm.client(strategy="cosine", audit=1.0, coordination=coordination)
            run = await client.start(prompt, max_new_tokens=TOKENS, seed=7, **SHAPED)
            first = next(each for each in verifiers if each.identity.peer_id == run.verifiers[0])
            async for chunk in run.chunks():
                if chunk.token_ids and first in verifiers:
                    verifiers.remove(first)
                    await first.kill()
            await run.audited()
            await assert_freed(swarm)
            return run.result(), [first.identity.peer_id]

    done, killed = run_virtual(run())
    assert done.token_ids == plain(prompt, eos=eos, options=SHAPED)
    assert [report.peer_id for report in done.verifiers][:1] == killed
    assert len(done.verifiers) == 2
    assert done.audit is not None and done.audit.state is AuditState.PASSED


def test_a_token_that_stops_the_text_is_no_part_of_it() -> None:
    prompt = prompt_of(random.Random("stopped"))
    whole = plain(prompt, eos=(), options={})
    stop = next(token for index, token in enumerate(whole) if token not in whole[:index] and index > 3)
    done = run_virtual(generated(prompt, fidelities=(), eos=(), stop_token_ids=[stop]))
    assert (done.finish_reason, done.token_ids[-1]) == ("eos", stop)
    assert done.text == LETTERS.decode(done.token_ids[:-1])


def test_peers_of_older_versions_are_asked_for_nothing_that_they_would_ignore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "FEATURES", tuple(name for name in channel.FEATURES if name != "shaping"))
    prompt = prompt_of(random.Random("older"))
    assert run_virtual(generated(prompt, fidelities=(0.9,), eos=())).tokens == TOKENS
    with pytest.raises(GenerationFailed, match="its version knows no shaping"):
        run_virtual(generated(prompt, fidelities=(0.9,), eos=(), presence_penalty=1.0))
