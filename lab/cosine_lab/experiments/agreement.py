"""How often each drafter's first choice is the target's token, by kind of question; copying stands beside them.

The target answers the questions itself, greedily and sampled, and drafters choose along its answers with the noise
that it chose with. Nothing takes time here: equal models give equal figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, grouped, setup_of
from cosine_lab.experiments.kinds import questions_of
from cosine_lab.report.intervals import bootstrap_interval, ratio_of_sums
from cosine_node import zoo
from cosine_node.engine.ngram import NgramEngine
from cosine_node.models.model import fetch_folder, target_sizes
from cosine_node.training.answers import Answer
from cosine_node.training.distilling import drafter_in, right_choices
from cosine_node.training.questions import prompts_of
from cosine_node.training.target_source import Answering, LocalSource

COPYING: Final = "copying"
POOL_TOKENS: Final = 4096
"""More than any question and its answer have."""
SLOTS: Final = 16
"""Answers that the target writes at once; more do not make one core faster."""
LONGEST_PROMPT_TOKENS: Final = 512

Guesses = Callable[[Answer], int]
"""The number of an answer's tokens that a drafter would have chosen first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementOptions(ExperimentOptions):
    """The first `prompts` of the questions by kind, and the length of an answer to each, greedy and sampled.

    `drafters` are folders or names of models that are measured beside the family's own.
    """

    family: zoo.Family = zoo.Family.SMOL
    prompts: int = 43
    tokens: int = 128
    threads: int = 1
    drafters: tuple[str, ...] = ()

    @classmethod
    def quick(cls) -> "AgreementOptions":
        return cls(family=zoo.Family.TOY, prompts=2, tokens=8)


def run(options: AgreementOptions, *, say: Say) -> JsonRow:
    """Measure every drafter of a family; the result (docs/benchmarks.md). Raises `UsageError` if it is not here."""
    torch.set_num_threads(options.threads)
    target, *own = (f"{zoo.SCHEME}{name}" for name in zoo.names(options.family))
    drafters = [*own, *options.drafters]
    answers = answers_of(target, options)
    say(f"{len(answers)} answers of {target}")
    rows = rows_of(answers, load_guesses(target, drafters), say=say)
    return {
        "what": "The share of a target's tokens that each drafter would have chosen first, along its own answers.",
        "setup": setup_of(options, target=target, answers=len(answers)),
        "rows": rows,
        "findings": findings_of(rows, seed=options.seed),
    }


def answers_of(target: str, options: AgreementOptions) -> list[Answer]:
    """The target's own answers, greedy and sampled ones of each question. Raises `UsageError`."""
    source = LocalSource(
        model=target,
        answering=Answering(slots=SLOTS, new_tokens=options.tokens),
        layers=(),
        width=None,
        device="cpu",
        seed=options.seed,
    )
    asked = prompts_of(
        questions_of(options.family)[: options.prompts],
        source.codec,
        answers=2 * options.prompts,
        longest_prompt=LONGEST_PROMPT_TOKENS,
        is_asked_twice=True,
    )
    # They come as they end.
    return sorted(source.target().answers(asked), key=lambda one: (one.question, one.sampling.temperature))


def load_guesses(target: str, drafters: Sequence[str]) -> dict[str, Guesses]:
    """What each drafter of a target would choose, and what copying would. Raises `UsageError`."""
    vocab_tokens, _ = target_sizes(fetch_folder(target))
    engines = {COPYING: NgramEngine(vocab_tokens=vocab_tokens, context_tokens=POOL_TOKENS)} | {
        name.removeprefix(zoo.SCHEME): drafter_in(
            fetch_folder(name), vocab_tokens=vocab_tokens, device="cpu", pool_tokens=POOL_TOKENS
        )
        for name in drafters
    }

    def guesses(name: str) -> Guesses:
        return lambda answer: right_choices(engines[name], answer.prompt, answer.tokens, answer.sampling)

    return {name: guesses(name) for name in engines}


def rows_of(answers: Sequence[Answer], drafters: Mapping[str, Guesses], *, say: Say) -> list[JsonRow]:
    """One row for each answer: its tokens, and how many of them each drafter chose first."""
    rows = []
    for number, answer in enumerate(answers, 1):
        rows.append(
            {
                "kind": answer.domain,
                "temperature": answer.sampling.temperature,
                "question": answer.question,
                "tokens": len(answer.tokens),
                "right": {name: guesses(answer) for name, guesses in drafters.items()},
            }
        )
        say(f"answer {number} of {len(answers)}: {answer.domain}")
    return rows


def findings_of(rows: Sequence[JsonRow], *, seed: int) -> dict[str, Any]:
    """The shares of first choices that were right, by kind, and over all questions with intervals."""
    return {
        "kinds": [
            {"kind": kind, "temperature": temperature, **_shares(own)}
            for (kind, temperature), own in sorted(grouped(rows, "kind", "temperature").items())
        ],
        "drafters": list(_overall(rows, seed)),
    }


def _shares(rows: Sequence[JsonRow]) -> dict[str, float]:
    tokens = sum(row["tokens"] for row in rows)
    return {name: sum(row["right"][name] for row in rows) / tokens for name in rows[0]["right"]}


def _overall(rows: Sequence[JsonRow], seed: int) -> Iterator[JsonRow]:
    for (temperature,), own in sorted(grouped(rows, "temperature").items()):
        for name, share in _shares(own).items():
            pairs = [(row["right"][name], row["tokens"]) for row in own]
            yield {
                "temperature": temperature,
                "drafter": name,
                "right": share,
                "interval": bootstrap_interval(pairs, ratio_of_sums, seed=seed),
                "tokens": sum(row["tokens"] for row in own),
            }
