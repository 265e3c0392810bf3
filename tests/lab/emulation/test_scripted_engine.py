import pytest
import torch

from cosine_lab.emulation.scripted_engine import ScriptedEngine, best_choice, keyed_scores, scripted_logits
from cosine_node.engine.base import PREFIX, Engine, OutOfPages, Row
from cosine_node.engine.sampling import Query
from cosine_node.engine.torch.sampling import choose
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling, Shaping, TokenBias

SHAPING = Shaping(
    presence_penalty=0.7,
    frequency_penalty=-0.4,
    logit_bias=tuple(TokenBias(token, 1.5) for token in range(0, 64, 3)),
    bad_words=((3, 9, 5), (9, 7), (11,), (4, 8)),
    min_tokens=20,
    held_back=(1, 2),
)
SAMPLINGS = [
    Sampling(),
    Sampling(repetition_penalty=1.5),
    Sampling(temperature=1.0, seed=5),
    Sampling(temperature=0.7, seed=5, top_k=5),
    Sampling(temperature=1.5, seed=5, top_p=0.7),
    Sampling(temperature=1.5, seed=5, min_p=0.2, repetition_penalty=1.2),
    Sampling(temperature=2.0, seed=5, top_k=30, top_p=0.9, min_p=0.05),
    *(Sampling(temperature=t, repetition_penalty=1.2, shaping=SHAPING) for t in (0.0, 1.0)),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_selection_rule_is_that_of_the_torch_engine(sampling: Sampling) -> None:
    for position in range(40):
        logits = scripted_logits(model_seed=1, vocab_tokens=64, tail=(position, 2))
        scripted = best_choice(keyed_scores(logits, sampling, seen=[3, 9], position=position), candidates=4)
        tensor = torch.tensor([logits], dtype=torch.float64).to(torch.float32)
        real = choose(tensor, [Query(sampling, position, 4, [3], [9])])[0]
        assert real is not None
        assert scripted.token == real.token
        assert scripted.margin == pytest.approx(real.margin, abs=1e-4)
        assert [t for t, _ in scripted.candidates] == [t for t, _ in real.candidates]
        assert [p for _, p in scripted.candidates] == pytest.approx([p for _, p in real.candidates], rel=1e-3)


def _decode(engine: Engine, sampling: Sampling, count: int) -> list[int]:
    sequence = engine.open(sampling=sampling, prompt_tokens=3)
    fed, output = [1, 2, 3], list[int]()
    while len(output) < count:
        nodes = tuple(range(len(fed)))
        row = Row(sequence, tuple(fed), nodes, (PREFIX, *nodes[:-1]), scored_from=len(fed) - 1)
        fed = [engine.forward([row])[0].choices[0].token]
        engine.keep(sequence, nodes)
        output += fed
    engine.release(sequence)
    return output


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_equal_seeds_are_one_target(sampling: Sampling) -> None:
    first, second = ScriptedEngine(model_seed=7), ScriptedEngine(model_seed=7)
    assert _decode(first, sampling, 30) == _decode(second, sampling, 30)
    assert _decode(ScriptedEngine(model_seed=8), sampling, 30) != _decode(first, sampling, 30)
    assert first.live_tokens == first.open_sequences == 0


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=1)])
@pytest.mark.parametrize("fidelity", [0.0, 0.3, 0.7, 1.0])
def test_fidelity_is_the_share_of_agreement(fidelity: float, sampling: Sampling) -> None:
    firsts = seconds = 0
    for branch in range(20):
        row = Row(
            0,
            tuple((branch * 13 + 7 * i * i) % 64 for i in range(40)),
            tuple(range(40)),
            tuple(range(-1, 39)),
            0,
            2,
        )
        target, drafter = ScriptedEngine(), ScriptedEngine(fidelity=fidelity, drafter_seed=3)
        for engine in (target, drafter):
            engine.open(sampling=sampling, prompt_tokens=1)
        truths, guesses = (engine.forward([row])[0].choices for engine in (target, drafter))
        for truth, guess in zip(truths, guesses, strict=True):
            firsts += truth.token == guess.token
            seconds += truth.token == guess.candidates[1][0]
    assert firsts / 800 == pytest.approx(fidelity, abs=0.06)
    assert seconds / 800 == pytest.approx((1 - fidelity) / 2, abs=0.06)


def test_the_contract_is_enforced() -> None:
    engine = ScriptedEngine(pool_tokens=32)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    engine.forward([Row(sequence, (1, 2, 3), (0, 1, 2), (PREFIX, 0, 0))])
    engine.prune(sequence, [1])
    assert engine.live_tokens == 2
    for row in (
        Row(sequence, (1,), (5,), (1,)),
        Row(sequence, (1,), (0,), (PREFIX,)),
        Row(sequence, (64,), (5,), (PREFIX,)),
    ):
        with pytest.raises(LocalProtocolError):
            engine.forward([row])
    with pytest.raises(OutOfPages):
        engine.forward([Row(sequence, (1,) * 31, tuple(range(5, 36)), (PREFIX,) * 31)])
    engine.keep(sequence, [0])
    with pytest.raises(LocalProtocolError):
        engine.forward([Row(sequence, (1,), (5,), (0,))])
    engine.release(sequence)
    assert (engine.live_tokens, engine.free_tokens) == (0, 32)
