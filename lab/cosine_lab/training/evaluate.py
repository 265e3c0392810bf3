"""Measure how often each drafter guesses the target, on held-out prompts of every domain.

FAMILY=node/cosine_node/zoo/models
python -m cosine_lab.training.evaluate CORPORA $FAMILY --out $FAMILY/eval.json
"""

import argparse
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from cosine_lab.training.corpus import corpus_prompts
from cosine_lab.training.model import continue_one, default_device, load_model
from cosine_lab.training.vocabulary import END_ID
from cosine_node.zoo import DOMAINS

Hits = list[bool]


@dataclass(frozen=True, slots=True)
class Scored:
    """One continuation by the target, and each drafter's distributions along it (tokens x vocabulary)."""

    written: Tensor
    guesses: dict[str, Tensor]

    def hits_within(self, drafter: str, best: int) -> Tensor:
        """Where the target's token is among the drafter's `best` likeliest."""
        likeliest = self.guesses[drafter].topk(best, dim=-1).indices
        return (likeliest == self.written[:, None]).any(dim=1)


def hit_rate(rows: Sequence[Hits]) -> float:
    """The share of tokens that were guessed, over all rows."""
    return sum(map(sum, rows)) / max(1, sum(map(len, rows)))


def tokens_per_verification(rows: Sequence[Hits], draft_tokens: int) -> float:
    """Tokens gained per pass of the target with chains of `draft_tokens`, its own token included."""
    return sum(map(len, rows)) / max(1, sum(_verifications(hits, draft_tokens) for hits in rows))


def expected_tokens(rows: Sequence[Sequence[float]], draft_tokens: int) -> float:
    """The same when each token is accepted with its own probability, averaged over every start."""
    totals = [_expected_from(row[start : start + draft_tokens]) for row in rows for start in range(len(row))]
    return sum(totals) / max(1, len(totals))


def fusion_hits(scored: Scored, expert: str, specialists: Sequence[str]) -> dict[str, Hits]:
    """Greedy hits of ways to combine drafters: bounds (`any`), picks, the mean, and trees."""
    everyone = list(scored.guesses)
    merged = {
        "any_spec": _any_of(scored, specialists, best=1),
        "any_all": _any_of(scored, everyone, best=1),
        "maxconf_spec": _most_confident(scored, specialists),
        "maxconf_all": _most_confident(scored, everyone),
        "vote_spec": _mean(scored, specialists),
        "tree2_expert": scored.hits_within(expert, 2),
        "tree2_spec": _any_of(scored, specialists, best=2),
        "tree4_expert": scored.hits_within(expert, 4),
    }
    return {name: hits.tolist() for name, hits in merged.items()}


def _verifications(hits: Hits, draft_tokens: int) -> int:
    position = passes = 0
    while position < len(hits):
        chain = hits[position : position + draft_tokens]
        accepted = chain.index(False) if False in chain else len(chain)
        position += accepted + 1
        passes += 1
    return passes


def _expected_from(accepts: Sequence[float]) -> float:
    expected = reached = 1.0
    for accept in accepts:
        reached *= accept
        expected += reached
    return expected


def _any_of(scored: Scored, drafters: Sequence[str], best: int) -> Tensor:
    return torch.stack([scored.hits_within(drafter, best) for drafter in drafters]).any(dim=0)


def _most_confident(scored: Scored, drafters: Sequence[str]) -> Tensor:
    likeliest = torch.stack([scored.guesses[drafter] for drafter in drafters]).max(dim=-1)
    surest = likeliest.values.argmax(dim=0, keepdim=True)
    return likeliest.indices.gather(0, surest)[0] == scored.written


def _mean(scored: Scored, drafters: Sequence[str]) -> Tensor:
    mixed = torch.stack([scored.guesses[drafter] for drafter in drafters]).mean(dim=0)
    return mixed.argmax(dim=-1) == scored.written


# The chain lengths of the columns `tau4` and `tau8`.
CHAINS = {"tau4": 4, "tau8": 8}
_DRAFTER = "draft-"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedFamily:
    """The loaded models; drafters are keyed by what they are trained for."""

    target: LlamaForCausalLM
    drafters: dict[str, LlamaForCausalLM]

    @property
    def specialists(self) -> list[str]:
        """The drafters trained for a single domain."""
        return [name for name in self.drafters if name in DOMAINS]


@dataclass(frozen=True, slots=True)
class Continuation:
    """A held-out prompt and the target's text after it."""

    prompt: list[int]
    written: list[int]


def main(arguments: list[str] | None = None) -> None:
    """Write the acceptance matrix of a family as JSON."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    family = load_family(options.family, options.device)
    tokenizer = Tokenizer.from_file(str(options.family / "target" / "tokenizer.json"))
    matrix = {}
    for domain in options.domains.split(","):
        if domain not in family.drafters:
            raise SystemExit(f"{options.family} has no draft-{domain}; leave {domain} out with --domains")
        prompts = corpus_prompts(options.corpora, domain, options.prompts, options.seed, tokenizer)
        matrix[domain] = measure(family, domain, prompts, options.new_tokens, options.seed)
        log.info("%s: greedy agreement %s", domain, matrix[domain]["greedy"])
    options.out.write_text(json.dumps(matrix, indent=1) + "\n", "utf-8")


def load_family(folder: Path, device: str) -> LoadedFamily:
    """The target and every drafter of a family folder, in float32."""
    drafters = {
        path.name.removeprefix(_DRAFTER): load_model(path, device) for path in sorted(folder.glob(f"{_DRAFTER}*"))
    }
    return LoadedFamily(load_model(folder / "target", device), drafters)


def measure(
    family: LoadedFamily, domain: str, prompts: list[list[int]], most_new_tokens: int, seed: int
) -> dict[str, Any]:
    """One domain's rows of the matrix: greedy along greedy text, and T=1 along sampled text."""
    greedy = _continuations(family, prompts, most_new_tokens, 0.0, seed)
    sampled = _continuations(family, prompts, most_new_tokens, 1.0, seed)
    scored = [_score(family, item) for item in greedy]
    return {
        **_greedy_rows(family, scored),
        **_sampled_rows(family, sampled),
        "fusion": _fusion_rows(family, domain, scored),
        "route_acc": _round3(_routed_right(family, domain, greedy) / len(greedy)),
        "tokens": sum(len(item.written) for item in greedy),
        "ended": round(sum(item.written[-1] == END_ID for item in greedy) / len(greedy), 2),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("corpora", type=Path, help="folder with DOMAIN.dev.jsonl.xz")
    parser.add_argument("family", type=Path, help="folder with target and draft-* models")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--domains", default=",".join(DOMAINS))
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default=default_device())
    return parser


def _continuations(
    family: LoadedFamily, prompts: list[list[int]], most_new_tokens: int, temperature: float, seed: int
) -> list[Continuation]:
    generator = torch.Generator(family.target.device).manual_seed(seed)
    return [
        Continuation(prompt, continue_one(family.target, prompt, most_new_tokens, temperature, generator))
        for prompt in prompts
    ]


@torch.inference_mode()
def _distributions(model: LlamaForCausalLM, item: Continuation) -> Tensor:
    """The model's distribution at every written token, on the CPU."""
    tokens = torch.tensor([item.prompt + item.written[:-1]], device=model.device)
    logits = model(input_ids=tokens, logits_to_keep=len(item.written)).logits[0]
    return torch.softmax(logits.float(), dim=-1).cpu()


def _score(family: LoadedFamily, item: Continuation) -> Scored:
    guesses = {name: _distributions(model, item) for name, model in family.drafters.items()}
    return Scored(torch.tensor(item.written), guesses)


def _greedy_rows(family: LoadedFamily, scored: list[Scored]) -> dict[str, dict[str, float]]:
    hits: dict[str, list[Hits]] = {
        name: [item.hits_within(name, 1).tolist() for item in scored] for name in family.drafters
    }
    rows = {"greedy": {name: _round3(hit_rate(rows)) for name, rows in hits.items()}}
    for label, length in CHAINS.items():
        rows[label] = {name: round(tokens_per_verification(rows, length), 2) for name, rows in hits.items()}
    return rows


def _sampled_rows(family: LoadedFamily, sampled: list[Continuation]) -> dict[str, dict[str, float]]:
    wanted = [_distributions(family.target, item) for item in sampled]
    agreement: dict[str, float] = {}
    expected: dict[str, float] = {}
    for name, model in family.drafters.items():
        overlaps = [
            torch.minimum(target, _distributions(model, item)).sum(dim=-1).tolist()
            for target, item in zip(wanted, sampled, strict=True)
        ]
        agreement[name] = _round3(_mean_of(value for row in overlaps for value in row))
        expected[name] = round(expected_tokens(overlaps, CHAINS["tau4"]), 2)
    return {"T1": agreement, "tau4_T1": expected}


def _fusion_rows(family: LoadedFamily, domain: str, scored: list[Scored]) -> dict[str, dict[str, float]]:
    by_prompt = [fusion_hits(item, domain, family.specialists) for item in scored]
    rows = {}
    for way in by_prompt[0]:
        hits = [ways[way] for ways in by_prompt]
        chains = {label: round(tokens_per_verification(hits, n), 2) for label, n in CHAINS.items()}
        rows[way] = {"hit": _round3(hit_rate(hits)), **chains}
    return rows


def _routed_right(family: LoadedFamily, domain: str, items: list[Continuation]) -> int:
    """The number of prompts that the right specialist finds likeliest."""
    return sum(
        max(family.specialists, key=lambda name: _likelihood(family.drafters[name], item.prompt)) == domain
        for item in items
    )


@torch.inference_mode()
def _likelihood(model: LlamaForCausalLM, prompt: list[int]) -> float:
    tokens = torch.tensor([prompt], device=model.device)
    logits = model(input_ids=tokens[:, :-1]).logits[0].float()
    return -float(torch.nn.functional.cross_entropy(logits, tokens[0, 1:]))


def _mean_of(values: Iterable[float]) -> float:
    collected = list(values)
    return sum(collected) / max(1, len(collected))


def _round3(value: float) -> float:
    return round(value, 3)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
