"""Questions of every kind: as many of each, each once, in an order that takes the kinds in turn."""

from collections import Counter

from cosine_lab.experiments.kinds import EXPERTS, FILE, questions_of
from cosine_node import zoo
from cosine_node.zoo.family import Family
from cosine_train.training.questions import HELD_OUT_MARK

KINDS = 13


def test_there_are_three_questions_of_each_kind_and_one_for_each_expert() -> None:
    counts = Counter(question.domain for question in questions_of(Family.SMOL))
    assert counts.pop(EXPERTS) == len(zoo.SMOL_DOMAINS)
    assert set(counts.values()) == {3} and len(counts) == KINDS


def test_no_question_is_learned_from() -> None:
    """Whatever trains on the folder of this file leaves it out."""
    assert HELD_OUT_MARK in FILE.name
    assert all(question.is_held_out for question in questions_of(Family.SMOL) if question.domain != EXPERTS)
