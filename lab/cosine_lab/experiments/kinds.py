"""Questions of every kind that people ask, three of each, and one of each domain that a family has an expert for.

They are this project's own. No model of it learns from them: figures by kind are of texts that nobody has seen.
"""

from importlib import resources
from pathlib import Path
from typing import Final

from cosine_lab.experiments.experiment import EXPERTS_OF
from cosine_node import zoo
from cosine_node.zoo.family import Family
from cosine_train.training.questions import Question, in_turns, read_questions

FILE: Final = Path(str(resources.files(__package__))) / "kinds.dev.jsonl"
"""The general questions, as `zoo train` reads them; the mark in its name keeps them out of training."""
EXPERTS: Final = "experts"
"""The kind of the questions from the domains of experts."""


def questions_of(family: Family) -> list[Question]:
    """All questions, one of each kind in turn; those of experts are the first of the family's own prompts.

    The order is always the same.
    """
    of_experts = []
    for domain in EXPERTS_OF[family]:
        first = next(prompt.asked for prompt in zoo.prompts(domain) if prompt.messages)
        assert not isinstance(first, str)
        of_experts.append(Question(EXPERTS, tuple(first)))
    return in_turns([*read_questions(FILE), *of_experts])
