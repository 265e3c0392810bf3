"""Write model cards and DATA.json of a family folder; every figure comes from a file beside the models.

python -m cosine_lab.training.cards node/cosine_node/zoo/models --manifest CORPORA/MANIFEST.json
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cosine_node.zoo import DOMAINS, expertise

Source = dict[str, Any]

PURPOSE = (
    "This model exists to exercise a peer-to-peer network for speculative decoding: tests, demonstration and\n"
    "benchmarks run with it offline. It is far too small to know anything. Its texts have the form of their\n"
    "domain and make little sense; nothing it writes about medicine, or anything else, is advice or fact."
)
SHARE_ALIKE = "CC BY-SA 4.0"
"""A licence that a card must mention by name."""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """The facts of a card: the content of the files beside the model."""

    name: str
    config: dict[str, Any]
    training: dict[str, Any]
    acceptance: dict[str, Any]
    sources: Sequence[Source]


def data_list(manifest: Sequence[dict[str, Any]]) -> list[Source]:
    """The published part of a corpora manifest, with the use that was made of each source."""
    kept = ("domain", "source", "repo", "commit", "licence", "paths", "note")
    return [{**{key: entry[key] for key in kept}, "use": _use(entry)} for entry in manifest]


def model_card(facts: CardFacts) -> str:
    """The README.md of one model."""
    sections = (
        _front_matter(facts),
        f"# {facts.name}\n\n{_summary(facts)}\n\n{PURPOSE}",
        f"## Training\n\n{_recipe(facts)}",
        f"## Acceptance\n\n{_measured(facts)}",
        f"## Data and licences\n\n{_data(facts)}",
    )
    return "\n\n".join(sections) + "\n"


def _use(entry: dict[str, Any]) -> str:
    if entry["domain"] not in DOMAINS:
        return "tokenizer only"
    return "training and evaluation" if entry["records"]["train"] else "evaluation only"


def _front_matter(facts: CardFacts) -> str:
    domain = expertise(facts.name) or ("target",)
    fields = (
        "---",
        "license: apache-2.0",
        "language: en",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        *(f"- {tag}" for tag in ("speculative-decoding", *domain)),
        "---",
    )
    return "\n".join(fields)


def _summary(facts: CardFacts) -> str:
    config = facts.config
    role = "The target model" if not expertise(facts.name) else f"The {expertise(facts.name)[0]} drafter"
    size = (
        f"a Llama decoder of {config['num_hidden_layers']} layers and width {config['hidden_size']}, "
        f"{facts.training['parameters']:,} parameters in {config['dtype']}"
    )
    tokenizer = (
        "It carries the tokenizer of the family: byte-level BPE with 4096 entries."
        if not expertise(facts.name)
        else "The tokenizer is that of `target`, in the folder beside this one."
    )
    return f"{role} of the family embedded in CoSine P2P: {size}.\n{tokenizer}"


def _recipe(facts: CardFacts) -> str:
    run = facts.training
    shares = ", ".join(f"{domain} {share:g}" for domain, share in run["mix"].items())
    weight = run["generated_weight"]
    generated = f", and text written by the target with weight {weight:g}" if weight else ""
    lines = [
        f"- method: {run['method']}",
        f"- texts: {shares}{generated}",
        f"- run: {run['tokens']:,} tokens in {run['steps']:,} steps of {run['batch_rows']} x "
        f"{run['sequence_tokens']}, {run['minutes']:g} minutes ({run['device']}, threads: {run['threads']})",
        f"- AdamW, learning rate {run['learning_rate']:g} with {run['warmup_steps']} steps of warm-up and "
        f"cosine decay, weight decay {run['weight_decay']:g}, bf16 autocast, seed {run['seed']}",
    ]
    losses = ", ".join(f"{domain} {loss:g}" for domain, loss in run["heldout_nll"].items())
    lines.append(f"- loss per token on held-out text: {losses}")
    if "earlier" in run:
        lines.append(f"- {run['earlier']}")
    return "\n".join(lines) + "\n\nThe scripts are in `lab/cosine_lab/training/` of the project's repository."


def _measured(facts: CardFacts) -> str:
    drafter = expertise(facts.name)
    header = "Measured on held-out prompts of each domain, along the target's own text, in float32:\n" + (
        "`greedy` is how often a drafter's likeliest token is the target's, `tau4` and `tau8` are tokens per\n"
        "verification with chains of 4 and 8 guesses (the target's own token included), and `T1` is the overlap\n"
        "of both distributions along text sampled at temperature 1."
    )
    rows = _drafter_rows(facts, drafter[0]) if drafter else _target_rows(facts)
    return f"{header}\n\n{rows}"


def _drafter_rows(facts: CardFacts, drafter: str) -> str:
    keys = ("greedy", "tau4", "tau8", "T1")
    rows = [
        [domain, *(f"{measured[key][drafter]:g}" for key in keys), str(measured["tokens"])]
        for domain, measured in facts.acceptance.items()
    ]
    return _table(["domain", *keys, "tokens scored"], rows)


def _target_rows(facts: CardFacts) -> str:
    drafters = list(next(iter(facts.acceptance.values()))["greedy"])
    rows = []
    for drafter in drafters:
        cells = (f"{row['greedy'][drafter]:g} ({row['tau4'][drafter]:g})" for row in facts.acceptance.values())
        rows.append([f"draft-{drafter}", *cells])
    scored = ["tokens scored", *(str(measured["tokens"]) for measured in facts.acceptance.values())]
    return "Greedy agreement, with tau4 in brackets:\n\n" + _table(["drafter", *facts.acceptance], [*rows, scored])


def _data(facts: CardFacts) -> str:
    rows = [
        [entry["domain"], entry["source"], entry["repo"] or entry["commit"], entry["licence"], entry["use"]]
        for entry in facts.sources
    ]
    share_alike = [entry["source"] for entry in facts.sources if entry["licence"] == SHARE_ALIKE]
    remarks = (
        "The weights are published under Apache-2.0; the texts are not part of this folder. Repository, commit\n"
        "and paths of every source are in `DATA.json` beside the models."
    )
    if share_alike:
        remarks += f" {' and '.join(share_alike).upper()} is under {SHARE_ALIKE}, a share-alike licence."
    lineage = "" if not expertise(facts.name) else "It learned from a target that was trained on all domains.\n"
    return f"{remarks}\n{lineage}\n" + _table(["domain", "source", "repository", "licence", "use"], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main(arguments: list[str] | None = None) -> None:
    """Write README.md into every model's folder from the files that lie there and beside it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("family", type=Path)
    parser.add_argument("--manifest", type=Path, help="write DATA.json anew from this corpora manifest")
    options = parser.parse_args(arguments)
    if options.manifest:
        sources = data_list(_read_json(options.manifest))
        text = json.dumps(sources, indent=1, ensure_ascii=False) + "\n"
        (options.family / "DATA.json").write_text(text, "utf-8")
    for config in sorted(options.family.glob("*/config.json")):
        card = model_card(gather(config.parent))
        (config.parent / "README.md").write_text(card, "utf-8")


def gather(model: Path) -> CardFacts:
    """The facts of one model of a family folder."""
    return CardFacts(
        name=model.name,
        config=_read_json(model / "config.json"),
        training=_read_json(model / "training.json"),
        acceptance=_read_json(model.parent / "eval.json"),
        sources=_read_json(model.parent / "DATA.json"),
    )


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    main()
