"""A target's answers, guessed by the target itself and by one that knows something else."""

import pytest

from cosine_lab.simulation.scripted_engine import ScriptedEngine
from cosine_node.engine.base import PREFIX, Row
from cosine_node.training.distilling import DraftAgreement, agreement_by_domain, agreement_of
from cosine_protocol.request import Sampling
from tests.node.training.samples import answer

VOCAB = 32


def written(sampling: Sampling, tokens: int = 40) -> tuple[int, ...]:
    """The tokens of a scripted target after the prompt of `answer`."""
    engine = ScriptedEngine(vocab_tokens=VOCAB)
    sequence = engine.open(sampling=sampling, prompt_tokens=3)
    (result,) = engine.forward([Row.chain(sequence, (1, 2, 3), scored_from=2)])
    engine.keep(sequence, (0, 1, 2))
    found = [result.choices[0].token]
    while len(found) < tokens:
        (result,) = engine.forward([Row(sequence, (found[-1],), (0,), (PREFIX,))])
        engine.keep(sequence, (0,))
        found.append(result.choices[0].token)
    return tuple(found)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4)])
def test_the_target_guesses_all_of_its_own_tokens(sampling: Sampling) -> None:
    engine = ScriptedEngine(vocab_tokens=VOCAB)
    assert agreement_of(engine, answer(written(sampling), sampling=sampling)) == DraftAgreement(40, 40)
    assert engine.open_sequences == 0


def test_a_worse_drafter_guesses_some() -> None:
    drafter = ScriptedEngine(vocab_tokens=VOCAB, fidelity=0.5)
    found = agreement_of(drafter, answer(written(Sampling())))
    assert 5 < found.right < 35


def test_domains_are_told_apart() -> None:
    right, wrong = answer(written(Sampling()), domain="a"), answer((31,) * 20, domain="b")
    found = agreement_by_domain(ScriptedEngine(vocab_tokens=VOCAB), [right, wrong, right])
    assert found["a"] == DraftAgreement(80, 80)
    assert found["b"].tokens == 20
    assert found["b"].share < 0.5
