"""The making of a drafter: asks the target, chooses the vocabulary, trains, measures and writes the folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.ngram import NgramEngine
from cosine_engine.torch.loading import load_model, resolve_device
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from cosine_train.training.answers import Answer, Say, ask_all, most_frequent
from cosine_train.training.card import drafter_card
from cosine_train.training.distilling import Example, ExampleMix, distillation_loss, drafter_in, right_choices
from cosine_train.training.local_target import LocalTarget
from cosine_train.training.loop import Training, TrainingPlan, computes_in_bfloat16, train
from cosine_train.training.new_drafter import adopt
from cosine_train.training.own_questions import write_follow_ups, write_own_questions
from cosine_train.training.questions import TEMPERATURE, Question, prompts_of, read_questions
from cosine_train.training.target_source import TargetSource

RECORD: Final = "training.json"
"""The file of a finished drafter that describes its training and agreement."""
CHECKPOINT: Final = "checkpoint.pt"
ANSWERS: Final = "answers"
"""The folder of the answers to learn from."""
POOL_TOKENS: Final = 4096
"""More than the tokens of any answer and its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSettings:
    """The settings of the training of one drafter.

    Answers are kept in `work`, which several drafters can share. Besides the questions of `texts`, if any, the
    target writes `own_questions` and at most `follow_ups` to its answers. `shares` weight the domains; without them
    all answers count equally. `init` is a drafter to continue from.
    """

    target: str
    texts: Path | None
    own_questions: int = 0
    follow_ups: int = 0
    out: Path
    work: Path
    plan: TrainingPlan
    answers: int
    held_out: int
    longest_prompt: int
    known_tokens: int
    shares: Mapping[str, float] = field(default_factory=dict)
    init: Path | None = None
    batch_rows: int
    seed: int
    device: str
    threads: int | None = None


def train_drafter(settings: DrafterSettings, source: TargetSource, say: Say) -> dict[str, Any]:
    """Make the folder of a drafter, resuming an interrupted training; return its record. Raises `UsageError`."""
    if settings.init is not None and DraftVocabulary.read(settings.init) is None:
        raise UsageError(f"{settings.init} is no drafter that was trained so: it has no draft vocabulary.")
    device, learned, held_out = prepare(settings, source, say, name="drafter")
    vocabulary, drafter = _beginning(settings, learned, source)
    say(f"{len(learned)} answers; the drafter knows {len(vocabulary.target_ids)} tokens")
    mix = ExampleMix(
        [Example.of(answer, vocabulary) for answer in learned],
        shares=settings.shares,
        rows=settings.batch_rows,
        seed=settings.seed,
        device=str(device),
    )
    run = train(
        drafter.to(device).train(),
        mix.batch,
        distillation_loss,
        settings.plan,
        device=device.type,
        checkpoint=settings.out / CHECKPOINT,
        say=say,
    )
    drafter.to(torch.bfloat16).save_pretrained(settings.out)
    say("measuring along held-out answers")
    record = training_record(settings, drafter, vocabulary, learned, run, device=device.type)
    # A target may write an id that its tokenizer does not have.
    written = max(max(answer.tokens) for answer in (*learned, *held_out))
    vocab_tokens = max(source.codec.vocab_tokens, 1 + written)
    record["agreement"] = measured_agreement(settings.out, held_out, vocab_tokens=vocab_tokens, device=str(device))
    finish(settings.out, record, drafter_card(settings.out.name, record))
    return record


def prepare(
    settings: DrafterSettings, source: TargetSource, say: Say, *, name: str
) -> tuple[torch.device, list[Answer], list[Answer]]:
    """Create the folder; return the device and the answers as `gather_answers`. Raises `UsageError`."""
    if (settings.out / RECORD).is_file():
        raise UsageError(f"{settings.out} holds a {name} that is finished; give another folder with --out.")
    device = resolve_device(settings.device)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    learned, held_out = gather_answers(settings, source, say)
    settings.out.mkdir(parents=True, exist_ok=True)
    return device, learned, held_out


def finish(out: Path, record: Mapping[str, Any], card: str) -> None:
    """Write the record and the model card, and delete the checkpoint."""
    (out / RECORD).write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    (out / "README.md").write_text(card, "utf-8")
    (out / CHECKPOINT).unlink()


def measured_agreement(
    drafter: Path, answers: Sequence[Answer], *, vocab_tokens: int, device: str
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the shares of right first choices of a drafter and of copying, by domain and temperature."""
    engines = {
        "drafter": drafter_in(drafter, vocab_tokens=vocab_tokens, device=device, pool_tokens=POOL_TOKENS),
        "copying": NgramEngine(vocab_tokens=vocab_tokens, context_tokens=POOL_TOKENS),
    }
    measured: dict[str, dict[str, dict[str, float]]] = {}
    for temperature, domain in sorted({(answer.sampling.temperature, answer.domain) for answer in answers}):
        along = [one for one in answers if (one.sampling.temperature, one.domain) == (temperature, domain)]
        tokens = sum(len(answer.tokens) for answer in along)
        shares = {
            name: round(sum(right_choices(engine, a.prompt, a.tokens, a.sampling) for a in along) / tokens, 3)
            for name, engine in engines.items()
        }
        measured.setdefault(domain, {})[f"{temperature:g}"] = shares | {"tokens": tokens}
    return measured


def gather_answers(settings: DrafterSettings, source: TargetSource, say: Say) -> tuple[list[Answer], list[Answer]]:
    """Return the answers to learn from, and those to held-out questions, each greedy and sampled.

    Raises `UsageError`.
    """
    work = settings.work
    marker = work / "target.txt"
    if marker.is_file() and marker.read_text("utf-8") != settings.target:
        raise UsageError(f"{work} holds the answers of {marker.read_text('utf-8')}; give another --work.")
    work.mkdir(parents=True, exist_ok=True)
    marker.write_text(settings.target, "utf-8")
    questions = _questions(settings, source, say)
    domains = {question.domain for question in questions}
    if unknown := set(settings.shares) - domains:
        raise UsageError(f"There are no texts of the domain {min(unknown)!r}.")
    asked = {domain for domain in domains if settings.shares.get(domain, not settings.shares)}
    own = [question for question in questions if not question.is_held_out and question.domain in asked]
    prompts = partial(prompts_of, codec=source.codec, longest_prompt=settings.longest_prompt)
    learned = prompts(own, answers=settings.answers, is_asked_twice=False)
    dev = [question for question in questions if question.is_held_out]
    held_out = prompts(dev, answers=2 * settings.held_out, is_asked_twice=True)
    if not learned or not held_out:
        raise UsageError(
            f"There are no questions of at most {settings.longest_prompt} tokens, or none that are held out; give "
            "more texts, or a greater --longest-prompt."
        )
    answers = ask_all(learned, work / ANSWERS, lambda prompts: source.target().answers(prompts), say)
    measured = ask_all(held_out, work / "held-out", lambda prompts: source.target().answers(prompts), say)
    return answers, measured


def _questions(settings: DrafterSettings, source: TargetSource, say: Say) -> list[Question]:
    """Return the questions of the texts, and those that the target writes."""
    questions = [] if settings.texts is None else read_questions(settings.texts)
    if settings.own_questions:
        target = source.target()
        if not isinstance(target, LocalTarget):
            raise UsageError("A target writes its own questions only on this machine; a swarm needs --texts.")
        own = read_questions(
            write_own_questions(
                target, source.codec, settings.work, count=settings.own_questions, seed=settings.seed, say=say
            )
        )
        questions += own
        if settings.follow_ups:
            prompts = prompts_of(
                [question for question in own if not question.is_held_out],
                source.codec,
                answers=settings.follow_ups,
                longest_prompt=settings.longest_prompt,
                is_asked_twice=False,
            )
            answers = ask_all(prompts, settings.work / ANSWERS, target.answers, say)
            questions += write_follow_ups(
                target, source.codec, settings.work, own, answers, count=settings.follow_ups, say=say
            )
    return questions


def _beginning(
    settings: DrafterSettings, learned: Sequence[Answer], source: TargetSource
) -> tuple[DraftVocabulary, Any]:
    """Return the initial vocabulary and model; the vocabulary is written to the drafter's folder."""
    # The checkpoint of an interrupted training requires its vocabulary.
    vocabulary = DraftVocabulary.read(settings.out)
    if vocabulary is None:
        vocabulary = most_frequent(learned, tokens=settings.known_tokens, shares=settings.shares)
    drafter = source.new_drafter(vocabulary)
    if settings.init is not None and (earlier := DraftVocabulary.read(settings.init)) is not None:
        adopt(drafter, load_model(ModelFiles.in_folder(settings.init), dtype=torch.float32), vocabulary, earlier)
    vocabulary.write(settings.out)
    return vocabulary, drafter


def training_record(
    settings: DrafterSettings,
    drafter: torch.nn.Module,
    vocabulary: DraftVocabulary,
    learned: Sequence[Answer],
    run: Training,
    *,
    device: str,
) -> dict[str, Any]:
    """Return the record of a training."""
    domains = sorted({answer.domain for answer in learned})
    plan = {
        name: value for name, value in asdict(settings.plan).items() if not name.startswith(("budget", "report"))
    }
    return {
        "target": settings.target,
        "method": "forward KL" if learned[0].likely_ids.shape[1] else "cross-entropy with the text",
        "parameters": sum(parameter.numel() for parameter in drafter.parameters()),
        "known_tokens": len(vocabulary.target_ids),
        "answers": {domain: sum(answer.domain == domain for answer in learned) for domain in domains},
        "answer_tokens": sum(len(answer.tokens) for answer in learned),
        "sampled_at": TEMPERATURE,
        "shares": dict(settings.shares),
        "init": settings.init.name if settings.init else None,
        "steps": run.steps,
        "minutes": round(run.minutes, 2),
        "device": device,
        "threads": torch.get_num_threads(),
        "batch_rows": settings.batch_rows,
        "seed": settings.seed,
        "numerics": "bf16 autocast" if computes_in_bfloat16(device) else "float32",
        **plan,
    }
