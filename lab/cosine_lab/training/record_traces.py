"""Records the target's text on held-out prompts and the candidates of every drafter along it, for simulations.

python -m cosine_lab.training.record_traces --corpora DIR --out lab/cosine_lab/emulation/data/family_traces.npz
"""

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from cosine_lab.emulation.traces import CANDIDATES, EOS, DrafterTrace, Trace, TraceSet
from cosine_lab.training.corpus import corpus_prompts
from cosine_lab.training.model import load_model
from cosine_node import zoo
from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_node.engine.sampling import Recipe
from cosine_node.engine.torch.loading import load_engine
from cosine_node.engine.torch.sampling import log_probabilities
from cosine_protocol.request import Sampling

TEMPERATURES = (0.0, 0.8)
"""Greedy, and a temperature that people use."""
NEAR_TIE = 1e-4
"""Below this margin of the two best scores another device may choose the other token."""
SHORTEST_STREAM_TOKENS = 8
"""Shorter answers leave nothing to speculate on."""
SPARE_PROMPTS = 4
"""Prompts taken from a corpus for each one recorded, since some answers are too short and some prompts repeat."""
POOL_TOKENS = 8192
"""Room for one sequence of the whole context."""

log = logging.getLogger(__name__)


UNKNOWN_LOG_PROBABILITY = -20.0
"""The log of no probability at all, where a reduced vocabulary does not know a token."""


class Recorded(Protocol):
    """A model that is recorded: the node's own engine for choices, and whole distributions."""

    @property
    def engine(self) -> Engine: ...

    def logits_along(self, prompt: Sequence[int], stream: Sequence[int]) -> Tensor:
        """The model's logits before each token of the stream, [stream, vocab of the target]."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedModel:
    """One model twice: the node's own engine for choices, and the plain model for whole distributions."""

    engine: Engine
    model: Any

    @classmethod
    def load(cls, name: str) -> "RecordedModel":
        """A model of the family in float32 on the CPU."""
        folder = zoo.folder(name)
        engine = load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=POOL_TOKENS)
        return cls(engine, load_model(folder, "cpu"))

    @torch.inference_mode()
    def logits_along(self, prompt: Sequence[int], stream: Sequence[int]) -> Tensor:
        tokens = torch.tensor([[*prompt, *stream[:-1]]])
        logits: Tensor = self.model(input_ids=tokens, logits_to_keep=len(stream)).logits[0]
        return logits


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """A prompt and the target's text after it."""

    prompt: tuple[int, ...]
    sampling: Sampling
    stream: tuple[int, ...]
    near_ties: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class RecordingPlan:
    """The work to be done: the number of prompts of each domain for a split, and the length of each answer."""

    corpora: Path
    prompts_per_domain: Mapping[str, int]
    limit_tokens: int
    seed: int


def main(arguments: list[str] | None = None) -> None:
    """Record acceptance traces of the embedded family."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    plan = RecordingPlan(
        options.corpora,
        {"tune": options.tune_prompts, "test": options.test_prompts},
        options.limit_tokens,
        options.seed,
    )
    traces = TraceSet(record(plan))
    traces.save(options.out)
    log.info("%d traces, %d bytes", len(traces), options.out.stat().st_size)


def record(plan: RecordingPlan) -> Iterator[Trace]:
    """Every prompt of the plan at every temperature, domain by domain; a trace's number is its seed."""
    target, drafters = load_family()
    number = 0
    for domain in zoo.DOMAINS:
        splits = [split for split, count in plan.prompts_per_domain.items() for _ in range(count)]
        for split, answers in zip(splits, _answers(plan, domain, target.engine, number), strict=False):
            for output in answers:
                yield compose(output, target, drafters, domain=domain, split=split)
                number += 1
        log.info("%s: %d traces so far", domain, number)


def load_family() -> tuple[RecordedModel, dict[str, RecordedModel]]:
    """The target, and every drafter by name."""
    target, *drafters = zoo.names()
    return RecordedModel.load(target), {name: RecordedModel.load(name) for name in drafters}


def _answers(plan: RecordingPlan, domain: str, target: Engine, number: int) -> Iterator[list[TargetOutput]]:
    """For each usable prompt the target's text at every temperature, seeded by numbers from `number` on."""
    tokenizer = Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))
    count = sum(plan.prompts_per_domain.values())
    offered = corpus_prompts(plan.corpora, domain, count * SPARE_PROMPTS, plan.seed, tokenizer)
    found = 0
    for prompt in dict.fromkeys(map(tuple, offered)):
        answers = [
            write(target, prompt, Sampling(temperature=temperature, seed=number + index), plan.limit_tokens)
            for index, temperature in enumerate(TEMPERATURES)
        ]
        if min(len(output.stream) for output in answers) >= SHORTEST_STREAM_TOKENS:
            yield answers
            found += 1
            number += len(answers)
        if found == count:
            return
    raise SystemExit(f"{plan.corpora} has only {found} of {count} usable prompts for {domain}; ask for fewer")


def write(
    target: Engine, prompt: Sequence[int], sampling: Sampling, limit_tokens: int, eos: Sequence[int] = EOS
) -> TargetOutput:
    """The target's own output, one token a pass, up to an EOS token or `limit_tokens` tokens."""
    sequence = target.open(sampling=sampling, prompt_tokens=len(prompt))
    pending = tuple(prompt)
    choices: list[Choice] = []
    while len(choices) < limit_tokens and not (choices and choices[-1].token in eos):
        names = tuple(range(len(pending)))
        row = Row(sequence, pending, names, (PREFIX, *names[:-1]), scored_from=len(pending) - 1)
        (result,) = target.forward([row])
        target.keep(sequence, names)
        choices += result.choices
        pending = (choices[-1].token,)
    target.release(sequence)
    stream = tuple(choice.token for choice in choices)
    return TargetOutput(tuple(prompt), sampling, stream, tuple(choice.margin < NEAR_TIE for choice in choices))


def compose(
    output: TargetOutput,
    target: Recorded,
    drafters: Mapping[str, Recorded],
    *,
    domain: str,
    split: str,
    number: int | None = None,
) -> Trace:
    """A trace of an output and of each drafter's candidates along it; its number is the seed if none is given."""
    truth = target.logits_along(output.prompt, output.stream)
    return Trace(
        number=output.sampling.seed if number is None else number,
        domain=domain,
        split=split,
        temperature=output.sampling.temperature,
        seed=output.sampling.seed,
        prompt_tokens=len(output.prompt),
        stream=output.stream,
        near_ties=output.near_ties,
        drafters={name: record_drafter(model, output, truth) for name, model in drafters.items()},
    )


def record_drafter(drafter: Recorded, output: TargetOutput, truth: Tensor) -> DrafterTrace:
    """A drafter's candidates before each token of a stream; `truth` are the target's logits, [stream, vocab]."""
    choices, prompt_nll = choices_along(drafter.engine, output)
    tokens, claims = candidate_table(choices)
    logits = drafter.logits_along(output.prompt, output.stream).float()
    stream = torch.tensor(output.stream)
    if output.sampling.is_greedy:
        overlap = (tokens[:, 0] == stream.numpy()).astype(np.float32)
    else:
        recipe = Recipe(output.sampling.temperature, 0, 1.0, 0.0, 1.0)
        both = (log_probabilities(scores.float(), recipe).exp() for scores in (truth, logits))
        overlap = torch.minimum(*both).sum(-1).clamp(max=1.0).numpy()
    along = logits.log_softmax(-1).gather(1, stream[:, None])[:, 0]
    log_probability = along.clamp(min=UNKNOWN_LOG_PROBABILITY).numpy()
    return DrafterTrace(tokens, claims, log_probability, overlap, prompt_nll)


def choices_along(drafter: Engine, output: TargetOutput) -> tuple[list[Choice], float]:
    """A drafter's choice before each token of the stream, and the mean loss of the prompt in nats a token."""
    prompt, rest = output.prompt, output.stream[:-1]
    sequence = drafter.open(sampling=output.sampling, prompt_tokens=len(prompt))
    names = tuple(range(len(prompt) + len(rest)))
    parents = (PREFIX, *names[:-1])
    end = len(prompt)
    first = Row(sequence, prompt, names[:end], parents[:end], end - 1, CANDIDATES, wants_nll=True)
    (result,) = drafter.forward([first])
    choices = list(result.choices)
    if rest:
        (along,) = drafter.forward([Row(sequence, rest, names[end:], parents[end:], 0, CANDIDATES)])
        choices += along.choices
    drafter.release(sequence)
    return choices, result.nll or 0.0


def candidate_table(choices: Sequence[Choice]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The tokens of each choice's candidates, and their draft probabilities, [choices, candidates]."""
    candidates = np.array([choice.candidates for choice in choices], np.float64)
    return candidates[:, :, 0].astype(np.int32), candidates[:, :, 1].astype(np.float32)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--corpora", type=Path, required=True, help="folder with DOMAIN.dev.jsonl.xz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-tokens", type=int, default=128)
    parser.add_argument("--tune-prompts", type=int, default=4, help="of each domain")
    parser.add_argument("--test-prompts", type=int, default=16, help="of each domain")
    parser.add_argument("--seed", type=int, default=7, help="draws the prompts")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
