"""The share of a target's tokens that a drafter would have guessed first, along the target's own answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cosine_node.distillation.answers import Answer
from cosine_node.engine.base import PREFIX, Engine, Row
from cosine_protocol.request import Sampling


class TargetText(Protocol):
    """A target's own continuation of a prompt, and how it was chosen."""

    @property
    def sampling(self) -> Sampling: ...

    @property
    def prompt(self) -> tuple[int, ...]: ...

    @property
    def tokens(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class DraftAgreement:
    """First choices that were the target's token, of so many."""

    right: int
    tokens: int

    @property
    def share(self) -> float:
        return self.right / max(1, self.tokens)

    def __add__(self, other: "DraftAgreement") -> "DraftAgreement":
        return DraftAgreement(self.right + other.right, self.tokens + other.tokens)


def agreement_of(drafter: Engine, answer: TargetText) -> DraftAgreement:
    """That along one text, chosen with the sampling and the noise that the target chose with."""
    sequence = drafter.open(sampling=answer.sampling, prompt_tokens=len(answer.prompt))
    tokens = answer.prompt + answer.tokens[:-1]
    names = tuple(range(len(tokens)))
    row = Row(sequence, tokens, names, (PREFIX, *names[:-1]), scored_from=len(answer.prompt) - 1)
    try:
        (result,) = drafter.forward([row])
    finally:
        drafter.release(sequence)
    guesses = [choice.token for choice in result.choices]
    right = sum(guess == token for guess, token in zip(guesses, answer.tokens, strict=True))
    return DraftAgreement(right, len(answer.tokens))


def agreement_by_domain(drafter: Engine, answers: Sequence[Answer]) -> dict[str, DraftAgreement]:
    """The agreement along all answers of each domain, by its name."""
    return {
        domain: sum_of(agreement_of(drafter, answer) for answer in answers if answer.domain == domain)
        for domain in sorted({answer.domain for answer in answers})
    }


def sum_of(parts: Iterable[DraftAgreement]) -> DraftAgreement:
    """All of them together."""
    return sum(parts, DraftAgreement(0, 0))
