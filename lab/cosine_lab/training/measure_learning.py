"""Measures what drafters learn from the texts of a domain that is not their own.

python -m cosine_lab.training.measure_learning --corpora DIR --work DIR --target zoo:target \
    --drafter zoo:draft-math --own math --new literature

The target answers questions of the corpora, held-out ones for the measurement; a drafter learns from the others as
`join --learn` does. Each line is one round from the shipped weights: first choices that were right along held-out
texts of the new domain and of the drafter's own, before and after, with bootstrap intervals over texts.
"""

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from cosine_lab.report.intervals import ratio_and_interval
from cosine_node.drafter.observer import FailedBranch
from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_node.learning.decision import Acceptance
from cosine_node.learning.finetuning import Experience, RoundSettings, drafter_in, train_round
from cosine_node.learning.streams import MIN_TOKENS, VerifiedStream
from cosine_node.models.model import fetch_folder
from cosine_node.training.answers import Answer
from cosine_node.training.distilling import agreement_of
from cosine_node.training.questions import read_questions
from cosine_node.training.target_source import Answering, LocalSource, ask_all, prompts_of

SLOTS = 48
NEW_TOKENS = 128
LONGEST_PROMPT = 160
TYPICAL_ANSWER_TOKENS = 60
GARBAGE = ("random", "shuffled", "half", "own")
HONEST_CLIENTS = 8
"""A choice: texts come from so many clients in turn, and what is garbage from one more."""

_Text = TypeVar("_Text", Answer, VerifiedStream)

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    """Measure rounds of learning."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    source = source_of(options)
    vocab_tokens = source.codec.vocab_tokens
    base = fetch_folder(options.drafter)
    drafter = drafter_in(base, vocab_tokens=vocab_tokens)

    def texts(domain: str, *, is_held_out: bool, tokens: int) -> list[VerifiedStream]:
        answers = answers_of(source, options, domain, is_held_out=is_held_out, tokens=tokens)
        return [experienced(drafter, answer, number) for number, answer in enumerate(first_texts(answers, tokens))]

    held_out = {
        domain: texts(domain, is_held_out=True, tokens=options.held_out_tokens)
        for domain in (options.new, options.own)
    }
    before = {domain: _hits(drafter, streams) for domain, streams in held_out.items()}
    learned = texts(options.new, is_held_out=False, tokens=max(options.tokens))
    refused, of_target = repeated_shares(learned)
    log.info(
        "%.1f %% of refused first choices repeat three tokens of their text, %.1f %% of the target's own tokens do",
        100 * refused,
        100 * of_target,
    )
    for tokens in options.tokens:
        for experience in options.experience:
            for garbage in options.garbage:
                for seed in range(options.seeds):
                    known = list(first_texts(learned, tokens))
                    rng = random.Random(seed)
                    known = rng.sample(known, len(known))
                    made = garbage_of(known, share=garbage, kind=options.garbage_kind, rng=rng)
                    # The drafter guesses along what the liar says.
                    known += [replace(experienced(drafter, text, 0), client=text.client) for text in made]
                    settings = RoundSettings(
                        vocab_tokens=vocab_tokens,
                        seed=seed,
                        experience=Experience(experience),
                        own_weight=options.own_weight,
                    )
                    with tempfile.TemporaryDirectory() as out:
                        report = train_round(
                            base, known, held_out[options.new][:1], Path(out), settings, shipped=base
                        )
                        after_by = drafter_in(Path(out), vocab_tokens=vocab_tokens)
                        after = {domain: _hits(after_by, streams) for domain, streams in held_out.items()}
                    said = ", ".join(
                        f"{domain} {_said(before[domain], after[domain])}" for domain in (options.new, options.own)
                    )
                    log.info(
                        "%s, %d tokens, %s, %.0f %% garbage, seed %d: %s; %.0f s",
                        options.drafter,
                        tokens,
                        experience,
                        100 * garbage,
                        seed,
                        said,
                        report.seconds,
                    )


def source_of(options: argparse.Namespace) -> LocalSource:
    """The target that has written the texts."""
    return LocalSource(
        model=options.target,
        answering=Answering(slots=SLOTS, new_tokens=NEW_TOKENS),
        layers=(0, -1),
        width=None,
        device="cpu",
        seed=0,
    )


def answers_of(
    source: LocalSource, options: argparse.Namespace, domain: str, *, is_held_out: bool, tokens: int
) -> list[Answer]:
    """The target's answers in a domain, of some `tokens` tokens together; those that are missing are asked for."""
    questions = [
        question
        for question in read_questions(options.corpora)
        if question.domain == domain and question.is_held_out == is_held_out
    ]
    prompts = prompts_of(
        questions,
        source.codec,
        answers=tokens // TYPICAL_ANSWER_TOKENS + 8,
        longest_prompt=LONGEST_PROMPT,
        is_asked_twice=False,
    )
    folder = options.work / domain / ("held" if is_held_out else "learn")
    answers = ask_all(prompts, folder, lambda asked: source.target().answers(asked), log.info)
    return [answer for answer in answers if len(answer.tokens) >= MIN_TOKENS]


def first_texts(texts: Sequence[_Text], tokens: int) -> Iterator[_Text]:
    """The first texts, of so many tokens together."""
    for text in texts:
        if tokens <= 0:
            return
        yield text
        tokens -= len(text.tokens)


def experienced(drafter: Engine, answer: Answer | VerifiedStream, number: int) -> VerifiedStream:
    """The stream that a drafter would have recorded of an answer, or of what a client calls one."""
    choices = _choices(drafter, answer)
    failed = [
        FailedBranch(position, (choice.token,), choice.candidates[0][1])
        for position, (choice, token) in enumerate(zip(choices, answer.tokens, strict=True))
        if choice.token != token
    ]
    return VerifiedStream(
        client=str(number % HONEST_CLIENTS),
        sampling=answer.sampling,
        prompt=answer.prompt,
        tokens=answer.tokens,
        guesses=tuple(choice.token for choice in choices),
        failed=tuple(failed),
    )


def _choices(drafter: Engine, answer: Answer | VerifiedStream) -> tuple[Choice, ...]:
    sequence = drafter.open(sampling=answer.sampling, prompt_tokens=len(answer.prompt))
    tokens = answer.prompt + answer.tokens[:-1]
    names = tuple(range(len(tokens)))
    row = Row(sequence, tokens, names, (PREFIX, *names[:-1]), len(answer.prompt) - 1, candidates=1)
    (result,) = drafter.forward([row])
    drafter.release(sequence)
    return result.choices


def garbage_of(
    known: Sequence[VerifiedStream], *, share: float, kind: str, rng: random.Random
) -> list[VerifiedStream]:
    """Streams of one client, `share` of all tokens.

    Of the kind `random` they have any tokens, `shuffled` those of honest texts in any order. In `half` every second
    token is such a one, the others are the target's; in `own` the drafter's guesses stand for the target's tokens.
    """
    made: list[VerifiedStream] = []
    wanted = share / (1 - share) * sum(len(stream.tokens) for stream in known)
    vocabulary = [token for stream in known for token in stream.tokens]
    while wanted > 0:
        honest = rng.choice(known)
        tokens = rng.choices(range(1, 2000) if kind == "random" else vocabulary, k=len(honest.tokens))
        if kind == "half":
            tokens[::2] = honest.tokens[::2]
        elif kind == "own":
            tokens = list(honest.guesses)
        made.append(replace(honest, client="liar", tokens=tuple(tokens)))
        wanted -= len(tokens)
    return made


def repeated_shares(streams: Sequence[VerifiedStream]) -> tuple[float, float]:
    """The shares of refused first choices, and of the target's tokens, that repeat three tokens of their text.

    That is: such a token followed the same two before.
    """
    refused: list[bool] = []
    said: list[bool] = []
    for stream in streams:
        wrong = {branch.position: branch.tokens[0] for branch in stream.failed}
        text = stream.prompt + stream.tokens
        known: set[tuple[int, ...]] = set()
        for end in range(2, len(text)):
            position, before = end - len(stream.prompt), text[end - 2 : end]
            if position in wrong:
                refused.append((*before, wrong[position]) in known)
            if position >= 0:
                said.append((*before, text[end]) in known)
            known.add((*before, text[end]))
    return sum(refused) / max(1, len(refused)), sum(said) / max(1, len(said))


def _hits(drafter: Engine, streams: Sequence[VerifiedStream]) -> list[Acceptance]:
    agreements = [agreement_of(drafter, stream) for stream in streams]
    return [Acceptance(agreement.right, agreement.tokens) for agreement in agreements]


def _said(before: Sequence[Acceptance], after: Sequence[Acceptance]) -> str:
    """Both shares, and the gain in points with its interval."""
    tokens = [one.tokens for one in before]
    first = ratio_and_interval([one.right for one in before], tokens, seed=0)["ratio"]
    last = ratio_and_interval([one.right for one in after], tokens, seed=0)["ratio"]
    gains = [b.right - a.right for a, b in zip(before, after, strict=True)]
    gain = ratio_and_interval(gains, tokens, seed=0)
    low, high = gain["interval"]
    return f"{first:.3f} -> {last:.3f} ({100 * gain['ratio']:+.1f} points, {100 * low:+.1f} to {100 * high:+.1f})"


def parser_of_texts(description: str | None) -> argparse.ArgumentParser:
    """Options that say who learns, and from which texts of whose."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--corpora", type=Path, required=True, help="texts as `zoo train` takes them")
    parser.add_argument("--work", type=Path, required=True, help="keeps the target's answers")
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--own", required=True, help="the drafter's domain")
    parser.add_argument("--new", required=True, help="the domain that it learns")
    return parser


def _parser() -> argparse.ArgumentParser:
    parser = parser_of_texts(main.__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20_000])
    parser.add_argument("--held-out-tokens", type=int, default=4000)
    parser.add_argument("--experience", nargs="+", default=["guided"], choices=[kind.value for kind in Experience])
    parser.add_argument("--garbage", type=float, nargs="+", default=[0.0], help="share of all tokens")
    parser.add_argument("--garbage-kind", choices=GARBAGE, default="shuffled")
    parser.add_argument("--own-weight", type=float, default=RoundSettings(vocab_tokens=0).own_weight)
    parser.add_argument("--seeds", type=int, default=1)
    return parser


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    main()
