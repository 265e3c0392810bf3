"""Questions of every common kind, three of each, and one of each domain with an expert in the family.

They belong to this project, and none of its models learns from them: figures by kind are of unseen texts.
"""

from importlib import resources
from pathlib import Path
from typing import Final

from cosine_engine import zoo
from cosine_engine.zoo.family import Family
from cosine_lab.experiments.experiment import EXPERTS_OF
from cosine_train.training.questions import Question, in_turns, read_questions

FILE: Final = Path(str(resources.files(__package__))) / "kinds.dev.jsonl"
"""The general questions, in the form for `zoo train`; the mark in its name keeps them out of training."""
EXPERTS: Final = "experts"
"""The kind of the questions from the domains of experts."""


def questions_of(family: Family) -> list[Question]:
    """Return all questions, one of each kind in turn; those of experts are the first of the family's prompts.

    The order is always the same.
    """
    of_experts = []
    for domain in EXPERTS_OF[family]:
        first = next(prompt.asked for prompt in zoo.prompts(domain) if prompt.messages)
        assert not isinstance(first, str)
        of_experts.append(Question(EXPERTS, tuple(first)))
    return in_turns([*read_questions(FILE), *of_experts])
