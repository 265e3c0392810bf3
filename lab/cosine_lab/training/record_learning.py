"""Records what a drafter becomes as it learns: its candidates along held-out texts, after ever more learned tokens.

python -m cosine_lab.training.record_learning --corpora DIR --work DIR --target zoo:target \
    --drafter zoo:draft-math --own math --new literature \
    --others zoo:draft-code zoo:draft-general zoo:draft-literature \
    --out lab/cosine_lab/emulation/data/toy_learning.npz

The target answers questions of the corpora; a drafter learns from what it guessed along them, as `join --learn`
does. Each version is one round from the shipped weights. Beside it stand drafters that do not learn, so that there
is a swarm. Prompts are not kept: the texts that they are of are others'.
"""

import argparse
import logging
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import torch

from cosine_lab.emulation.traces import Trace, TraceSet
from cosine_lab.simulation.learners import version_name
from cosine_lab.simulation.workload import TEST_SPLIT
from cosine_lab.training.record_smol_traces import recorded_in
from cosine_lab.training.record_traces import NEAR_TIE, TEMPERATURES, Recorded, TargetOutput, choices_along, compose
from cosine_node import zoo
from cosine_node.drafter.observer import FailedBranch
from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_node.learning.finetuning import RoundSettings, drafter_in, train_round
from cosine_node.learning.streams import MIN_TOKENS, VerifiedStream
from cosine_node.models.model import fetch_folder
from cosine_node.training.answers import Answer
from cosine_node.training.questions import read_questions
from cosine_node.training.target_source import Answering, LocalSource, ask_all, prompts_of
from cosine_node.zoo.family import SCHEME
from cosine_p2p.request.generation_config import read_eos

SLOTS = 48
NEW_TOKENS = 128
LONGEST_PROMPT = 160
TYPICAL_ANSWER_TOKENS = 60
HONEST_CLIENTS = 8
"""Texts come from so many clients in turn."""

_Text = TypeVar("_Text", Answer, VerifiedStream)

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    """Record a drafter at each stage of its learning, and others beside it."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as work:
        traces = TraceSet(record(options, Path(work)))
    traces.save(options.out)
    log.info("%d traces, %d bytes", len(traces), options.out.stat().st_size)


def record(options: argparse.Namespace, work: Path) -> Iterator[Trace]:
    """The first held-out texts of both domains, greedy and sampled ones alike; versions are trained in `work`."""
    source = source_of(options)
    held_out = {
        domain: answers_of(source, options, domain, is_held_out=True, tokens=options.held_out_tokens)
        for domain in (options.new, options.own)
    }
    drafters = load_drafters(source, options, held_out[options.new], work)
    vocab_tokens = source.codec.vocab_tokens
    target, eos = recorded_in(source.folder, vocab_tokens=vocab_tokens), tuple(read_eos(source.folder))
    number = 0
    for domain, answers in held_out.items():
        for temperature in TEMPERATURES:
            alike = [answer for answer in answers if answer.sampling.temperature == temperature]
            for answer in alike[: options.streams // len(TEMPERATURES)]:
                output = _output(answer, target)
                trace = compose(output, target, drafters, domain=domain, split=TEST_SPLIT, number=number)
                yield replace(trace, eos=eos, vocab_tokens=vocab_tokens)
                number += 1
        log.info("%s: %d traces so far", domain, number)


def load_drafters(
    source: LocalSource, options: argparse.Namespace, held_out: list[Answer], work: Path
) -> Mapping[str, Recorded]:
    """The drafter as shipped and after each number of learned tokens, and the others, by their names in traces."""
    vocab_tokens = source.codec.vocab_tokens
    base = fetch_folder(options.drafter)
    folders = {_name_of(model): fetch_folder(model) for model in (options.drafter, *options.others)}
    shipped = drafter_in(base, vocab_tokens=vocab_tokens)
    answers = answers_of(source, options, options.new, is_held_out=False, tokens=max(options.tokens))
    learned = [
        experienced(shipped, answer, number)
        for number, answer in enumerate(first_texts(answers, max(options.tokens)))
    ]
    measured = [experienced(shipped, held_out[0], 0)]
    for tokens in options.tokens:
        known = list(first_texts(learned, tokens))
        known = random.Random(options.seed).sample(known, len(known))
        settings = RoundSettings(vocab_tokens=vocab_tokens, seed=options.seed)
        out = work / str(tokens)
        out.mkdir()
        report = train_round(base, known, measured, out, settings, shipped=base)
        folders[version_name(_name_of(options.drafter), tokens)] = out
        log.info("%s, %d tokens: %.0f s", options.drafter, tokens, report.seconds)
    return {name: recorded_in(folder, vocab_tokens=vocab_tokens) for name, folder in folders.items()}


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


def _name_of(model: str) -> str:
    """The name that a drafter has in all traces, by its expertise."""
    (expertise,) = zoo.expertise(model.removeprefix(SCHEME))
    return f"draft-{expertise}"


def _output(answer: Answer, target: Recorded) -> TargetOutput:
    """What the target has written, with the places where another device could have written something else."""
    written = TargetOutput(answer.prompt, answer.sampling, answer.tokens, ())
    choices, _ = choices_along(target.engine, written)
    return replace(written, near_ties=tuple(choice.margin < NEAR_TIE for choice in choices))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--corpora", type=Path, required=True, help="texts as `zoo train` takes them")
    parser.add_argument("--work", type=Path, required=True, help="keeps the target's answers")
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--own", required=True, help="the drafter's domain")
    parser.add_argument("--new", required=True, help="the domain that it learns")
    parser.add_argument("--others", nargs="*", default=[], help="drafters of the family that do not learn")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2_000, 5_000, 10_000, 20_000])
    parser.add_argument("--streams", type=int, default=28, help="held-out texts of each domain")
    parser.add_argument("--held-out-tokens", type=int, default=4000, help="of each domain, to choose them from")
    parser.add_argument("--seed", type=int, default=0, help="of the rounds")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    main()
