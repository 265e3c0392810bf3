"""Train the target on text, or a drafter on the target's distributions.

python -m cosine_lab.training.train target WORK --out WORK/models/target --tokens 17e6
python -m cosine_lab.training.train draft WORK --out WORK/models/draft-code --teacher WORK/models/target --mix code
"""

import argparse
import json
import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from cosine_lab.training.corpus import read_tokens, token_file
from cosine_lab.training.model import default_device, load_model, parameter_count
from cosine_lab.training.stream import Source, TokenMix, even_windows, to_tensor
from cosine_lab.training.vocabulary import CONTEXT_TOKENS, END_ID
from cosine_train.training.loop import Plan, Training, computes_in_bfloat16
from cosine_train.training.loop import train as train_model
from cosine_train.training.new_drafter import Shape, new_model

Loss = Callable[[torch.nn.Module, Tensor], Tensor]


def next_token_loss(model: torch.nn.Module, window: Tensor) -> Tensor:
    """Cross-entropy with the text's own next token."""
    logits = model(input_ids=window[:, :-1]).logits.float()
    return F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())


def distillation_loss(teacher: torch.nn.Module) -> Loss:
    """Forward KL to the teacher's distribution, up to the teacher's own entropy, which is constant."""

    def loss(model: torch.nn.Module, window: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = F.softmax(teacher(input_ids=window[:, :-1]).logits.float(), dim=-1)
        guessed = F.log_softmax(model(input_ids=window[:, :-1]).logits.float(), dim=-1)
        return -(wanted * guessed).sum(dim=-1).mean()

    return loss


@torch.no_grad()
def loss_per_token(model: torch.nn.Module, windows: Tensor, device: str) -> float:
    """The mean loss on held-out windows."""
    model.eval()
    with torch.autocast(device, torch.bfloat16, enabled=computes_in_bfloat16(device)):
        return next_token_loss(model, windows).item()


# The mix that the shipped target was trained on.
SHARES = {"code": 0.22, "math": 0.18, "medical": 0.22, "dialogue": 0.20, "literature": 0.18}
_HELD_OUT_ROWS = 16
"""Windows of held-out text of each domain, enough for two digits of the loss."""

log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> Training:
    """Train one model and save it, with a record of the run, as a Hugging Face folder."""
    options = _parser().parse_args(arguments)
    if math.isinf(options.tokens) and math.isinf(options.minutes):
        raise SystemExit("give --tokens or --minutes")
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    shares = parse_shares(options.mix)
    mix = TokenMix(_sources(options, shares), options.sequence_tokens, options.seed, options.device)
    model = _starting_model(options).to(options.device).train()
    model.config.use_cache = False
    trained: Any = torch.compile(model) if options.compile else model
    result = train_model(
        trained, lambda _: mix.batch(options.batch_rows), _loss(options), _plan(options), device=options.device
    )
    held_out = _held_out_losses(model, options)
    model.config.use_cache = True
    model.save_pretrained(options.out)
    record = _record(model, options, shares, result, held_out)
    (options.out / "training.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return result


def parse_shares(text: str) -> dict[str, float]:
    """`all`, or domains with optional weights: `code` or `code:0.7,math:0.3`."""
    if text == "all":
        return dict(SHARES)
    pairs = [part.partition(":") for part in text.split(",")]
    return {domain: float(weight or 1.0) for domain, _, weight in pairs}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    target = kinds.add_parser("target", help="learn the next token of the texts")
    _add_options(target, layers=8, width=256, learning_rate=2e-3, warmup_steps=100)
    draft = kinds.add_parser("draft", help="learn the target's distribution over the next token")
    _add_options(draft, layers=2, width=128, learning_rate=2e-3, warmup_steps=20)
    draft.add_argument("--teacher", type=Path, required=True, help="folder of the target")
    return parser


def _add_options(
    parser: argparse.ArgumentParser, layers: int, width: int, learning_rate: float, warmup_steps: int
) -> None:
    parser.add_argument("work", type=Path, help="folder that cosine_lab.training.corpus wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mix", default="all", help="all, or domains with weights: code:0.7,math:0.3")
    parser.add_argument("--generated", action="append", default=[], help="FILE:WEIGHT of teacher-made tokens")
    parser.add_argument("--init", type=Path, help="go on from this model in place of a new one")
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--width", type=int, default=width)
    parser.add_argument("--vocabulary-size", type=int, default=4096)
    parser.add_argument("--tokens", type=float, default=math.inf, help="stop after so many tokens")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many minutes")
    parser.add_argument("--batch-rows", type=int, default=8)
    parser.add_argument("--sequence-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument("--warmup-steps", type=int, default=warmup_steps)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default=default_device())
    parser.add_argument("--compile", action="store_true", help="worth its start-up time on CUDA only")


def _sources(options: argparse.Namespace, shares: dict[str, float]) -> list[Source]:
    sources = [
        Source(read_tokens(token_file(options.work, domain, "train")), weight) for domain, weight in shares.items()
    ]
    for argument in options.generated:
        path, _, weight = argument.rpartition(":")
        sources.append(Source(read_tokens(Path(path)), float(weight)))
    return sources


def _starting_model(options: argparse.Namespace) -> LlamaForCausalLM:
    if options.init:
        return load_model(options.init, options.device)
    shape = Shape(options.layers, options.width, options.vocabulary_size, CONTEXT_TOKENS)
    return new_model(shape, options.seed, end_id=END_ID)


def _loss(options: argparse.Namespace) -> Loss:
    if options.kind == "target":
        return next_token_loss
    return distillation_loss(load_model(options.teacher, options.device, torch.bfloat16))


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(
        learning_rate=options.learning_rate,
        warmup_steps=options.warmup_steps,
        weight_decay=options.weight_decay,
        budget_steps=options.tokens / (options.batch_rows * options.sequence_tokens),
        budget_minutes=options.minutes,
    )


def _held_out_losses(model: LlamaForCausalLM, options: argparse.Namespace) -> dict[str, float]:
    losses = {}
    for path in sorted((options.work / "tokens").glob("*.dev.npy")):
        stream = to_tensor(read_tokens(path), options.device)
        windows = even_windows(stream, options.sequence_tokens, _HELD_OUT_ROWS)
        losses[path.name.partition(".")[0]] = round(loss_per_token(model, windows, options.device), 3)
    return losses


def _record(
    model: LlamaForCausalLM,
    options: argparse.Namespace,
    shares: dict[str, float],
    result: Training,
    held_out: dict[str, float],
) -> dict[str, Any]:
    method = "next-token cross-entropy" if options.kind == "target" else "forward KL to the target"
    plan = _plan(options)
    settings = {name: value for name, value in asdict(plan).items() if not name.startswith(("budget", "report"))}
    return {
        "method": method,
        "parameters": parameter_count(model),
        "steps": result.steps,
        "tokens": result.steps * options.batch_rows * options.sequence_tokens,
        "minutes": round(result.minutes, 2),
        "device": options.device,
        "threads": options.threads,
        "seed": options.seed,
        "batch_rows": options.batch_rows,
        "sequence_tokens": options.sequence_tokens,
        "mix": shares,
        "generated_weight": sum(float(argument.rpartition(":")[2]) for argument in options.generated),
        **settings,
        "heldout_nll": held_out,
    }


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
