"""How often each drafter's first choice is the target's token, by kind of question; copying stands beside them.

The target answers the questions itself, greedily and sampled, and drafters choose along its answers with the noise
that it chose with. A draft head reads what the target makes of its answers, and is asked for tokens further on too.
What they know together is counted as well: whether any first choice is right, that of a mixture, and the two best
of one drafter, which cost a verifier as much as the first choices of two. Nothing takes time here: equal models
give equal figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import torch

from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, grouped, setup_of
from cosine_lab.experiments.kinds import questions_of
from cosine_lab.report.intervals import bootstrap_interval, ratio_of_sums
from cosine_node import zoo
from cosine_node.engine.base import Choice, Row
from cosine_node.engine.ngram import NgramEngine
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_node.models.home_model import OWN_LAYER, HomeModel, is_eagle_head, load_with_home
from cosine_node.models.model import ModelSource, fetch_folder
from cosine_node.models.model_sizes import ModelSizes
from cosine_protocol.request import Sampling
from cosine_train.training.answers import Answer
from cosine_train.training.distilling import choices_along, drafter_in
from cosine_train.training.questions import prompts_of
from cosine_train.training.target_source import Answering, LocalSource

COPYING: Final = "copying"
POOL_TOKENS: Final = 4096
"""More than any question and its answer have."""
SLOTS: Final = 16
"""Answers that the target writes at once; more do not make one core faster."""
LONGEST_PROMPT_TOKENS: Final = 512
STEPS: Final = 5
"""Tokens of a draft that are counted: drafts are seldom longer."""

CANDIDATES: Final = 4
"""Of a drafter at a token: with more a mixture does not change."""

Guesses = Callable[[Answer], Sequence[Choice]]
"""What a drafter would have chosen in place of each of an answer's tokens."""
Steps = list[tuple[int, int]]
"""For each token further on: how often it was right where all before it were, and how often that was."""
HeadGuesses = Callable[[Answer], tuple[Steps, Sequence[Choice]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementOptions(ExperimentOptions):
    """The first `prompts` of the questions by kind, and the length of an answer to each, greedy and sampled.

    `drafters` are folders or names of models, draft heads among them, that are measured beside the family's own;
    `mtp` is the target's own layer.
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
    shipped = zoo.draft_head(target)
    named = [*own, *([] if shipped is None else [shipped]), *options.drafters]
    heads = [name for name in named if name == OWN_LAYER or is_eagle_head(fetch_folder(name))]
    answers = answers_of(target, options)
    say(f"{len(answers)} answers of {target}")
    drafters = load_guesses(target, [name for name in named if name not in heads])
    rows = rows_of(answers, drafters, load_heads(target, heads), say=say)
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
    vocab_tokens = ModelSizes.read(fetch_folder(target)).vocab_tokens
    engines = {COPYING: NgramEngine(vocab_tokens=vocab_tokens, context_tokens=POOL_TOKENS)} | {
        name.removeprefix(zoo.SCHEME): drafter_in(
            fetch_folder(name), vocab_tokens=vocab_tokens, device="cpu", pool_tokens=POOL_TOKENS
        )
        for name in drafters
    }

    def guesses(name: str) -> Guesses:
        return lambda answer: choices_along(
            engines[name], answer.prompt, answer.tokens, answer.sampling, candidates=CANDIDATES
        )

    return {name: guesses(name) for name in engines}


def load_heads(target: str, heads: Sequence[str]) -> dict[str, HeadGuesses]:
    """What each draft head of a target would choose. Raises `UsageError`."""
    source = ModelSource(model=target, target=target, engine=EngineChoice(kind=EngineKind.TORCH, device="cpu"))
    homes = {
        name.removeprefix(zoo.SCHEME): load_with_home(
            source, replace(source, model=name), lambda event, fields: None, measure_s=0.0
        )[1]
        for name in heads
    }

    def guesses(name: str) -> HeadGuesses:
        return lambda answer: right_drafts(homes[name], answer)

    return {name: guesses(name) for name in homes}


def right_drafts(home: HomeModel, answer: Answer) -> tuple[Steps, Sequence[Choice]]:
    """What a draft head would have drafted after each token of an answer, along it as far as it was right.

    With its choices for the first of these tokens.
    """
    assert home.target is not None, "a head has one"
    head, target, known = home.engine, home.target, len(answer.prompt)
    text, tokens = answer.prompt + answer.tokens, answer.tokens
    seen = target.open(sampling=Sampling(), prompt_tokens=known)
    sequence = head.open(sampling=answer.sampling, prompt_tokens=known - 1)
    try:
        row = Row.chain(seen, text[:-2])
        target.forward([row])
        target.keep(seen, row.nodes)
        # Nodes by the number of the token that follows them; a head begins with the second token of a text.
        names = tuple(range(len(text) - 2))
        first = known - 2
        read = replace(
            Row.chain(sequence, text[1:-1], scored_from=first),
            candidates=CANDIDATES,
            activations=target.activations(seen, 0, len(names)),
        )
        (result,) = head.forward([read])
        choices = result.choices
        alive = {place: first + place for place in range(len(tokens))}
        found: Steps = []
        for step in range(STEPS):
            right = {
                place: parent
                for (place, parent), choice in zip(alive.items(), result.choices, strict=True)
                if choice.token == tokens[place + step]
            }
            found.append((len(right), len(alive)))
            going_on = [(place, parent) for place, parent in right.items() if place + step + 1 < len(tokens)]
            if not going_on:
                return found + [(0, 0)] * (STEPS - len(found)), choices
            alive = {place: len(text) * (step + 1) + place for place, _ in going_on}
            (result,) = head.forward(
                [
                    Row(
                        sequence,
                        tuple(tokens[place + step] for place in alive),
                        tuple(alive.values()),
                        tuple(parent for _, parent in going_on),
                    )
                ]
            )
        return found, choices
    finally:
        head.release(sequence)
        target.release(seen)


def rows_of(
    answers: Sequence[Answer],
    drafters: Mapping[str, Guesses],
    heads: Mapping[str, HeadGuesses] = MappingProxyType({}),
    *,
    say: Say,
) -> list[JsonRow]:
    """One row for each answer: its tokens, how many of them each drafter chose first, and the steps of its drafts.

    `two` counts those among its two best, `together` what all of them know.
    """
    rows = []
    for number, answer in enumerate(answers, 1):
        choices = {name: guesses(answer) for name, guesses in drafters.items()}
        steps = {name: steps_along(own, answer.tokens) for name, own in choices.items()}
        for name, guesses_of_head in heads.items():
            steps[name], choices[name] = guesses_of_head(answer)
        rows.append(
            {
                "kind": answer.domain,
                "temperature": answer.sampling.temperature,
                "question": answer.question,
                "tokens": len(answer.tokens),
                "right": {name: _right(ranked(own, 1), answer.tokens) for name, own in choices.items()},
                "two": {name: _right(ranked(own, 2), answer.tokens) for name, own in choices.items()},
                "together": together(list(choices.values()), answer.tokens),
                "steps": steps,
            }
        )
        say(f"answer {number} of {len(answers)}: {answer.domain}")
    return rows


def steps_along(choices: Sequence[Choice], tokens: Sequence[int]) -> Steps:
    """The steps of a drafter whose choice does not depend on where its draft began."""
    is_right = [choice.token == token for choice, token in zip(choices, tokens, strict=True)]
    found, alive = [], list(range(len(tokens)))
    for step in range(STEPS):
        right = [place for place in alive if is_right[place + step]]
        found.append((len(right), len(alive)))
        alive = [place for place in right if place + step + 1 < len(tokens)]
    return found


def ranked(choices: Sequence[Choice], most: int) -> list[list[int]]:
    """The `most` likeliest tokens of a drafter at each place, the chosen one first."""
    return [
        [choice.token, *(token for token, _ in choice.candidates if token != choice.token)][:most]
        for choice in choices
    ]


def together(drafters: Sequence[Sequence[Choice]], tokens: Sequence[int]) -> dict[str, int]:
    """How many tokens `any` drafter chose first, how many a `mixture` did, or had among its `two` best.

    The mixture weighs a drafter's estimates by how often it was right so far, as a client may: it knows no more.
    """
    firsts = [ranked(own, 1) for own in drafters]
    right = [1.0] * len(drafters)
    mixed = []
    for place, token in enumerate(tokens):
        scores: dict[int, float] = {}
        for number, choices in enumerate(drafters):
            weight = right[number] / (place + 2)
            for candidate, estimate in choices[place].candidates:
                scores[candidate] = scores.get(candidate, 0.0) + weight * estimate
        mixed.append(sorted(scores, key=lambda candidate: -scores[candidate])[:2])
        for number, first in enumerate(firsts):
            right[number] += token in first[place]
    known = [[token for own in firsts for token in own[place]] for place in range(len(tokens))]
    return {
        "any": _right(known, tokens),
        "mixture": _right([best[:1] for best in mixed], tokens),
        "two": _right(mixed, tokens),
    }


def _right(known: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
    return sum(token in own for own, token in zip(known, tokens, strict=True))


def findings_of(rows: Sequence[JsonRow], *, seed: int) -> dict[str, Any]:
    """The shares of first choices that were right, by kind and over all questions, and the steps of drafts."""
    return {
        "kinds": [
            {"kind": kind, "temperature": temperature, **_shares(own)}
            for (kind, temperature), own in sorted(grouped(rows, "kind", "temperature").items())
        ],
        "drafters": list(_overall(rows, seed)),
        "together": list(_together(rows)),
        "steps": [
            {"temperature": temperature, "drafter": name, **_step_shares([row["steps"][name] for row in own])}
            for (temperature,), own in sorted(grouped(rows, "temperature").items())
            for name in own[0]["steps"]
        ],
    }


def _together(rows: Sequence[JsonRow]) -> Iterator[JsonRow]:
    """The best drafter, what all know and what a mixture makes of it, at each temperature."""
    for (temperature,), own in sorted(grouped(rows, "temperature").items()):
        tokens = sum(row["tokens"] for row in own)
        first = _shares(own)
        best = max(first, key=lambda name: first[name])
        shares = {name: sum(row["together"][name] for row in own) / tokens for name in own[0]["together"]}
        yield {
            "temperature": temperature,
            "best drafter": best,
            "right": first[best],
            "right in two": sum(row["two"][best] for row in own) / tokens,
            "any first choice": shares["any"],
            "mixture": shares["mixture"],
            "mixture in two": shares["two"],
        }


def _step_shares(steps: Sequence[Steps]) -> dict[str, float | None]:
    """The share of each token further on that was right where all before it were; None where none were."""
    counts = [tuple(map(sum, zip(*of_step, strict=True))) for of_step in zip(*steps, strict=True)]
    return {f"token {number}": right / asked if asked else None for number, (right, asked) in enumerate(counts, 1)}


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
