"""The model card of a trained drafter; every figure comes from the record of its training."""

from collections.abc import Mapping, Sequence
from typing import Any


def drafter_card(name: str, record: Mapping[str, Any]) -> str:
    """The README.md of a drafter."""
    begun = f"the drafter {record['init']}" if record["init"] else "layers of the target, or an untrained model"
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        "- speculative-decoding",
        "---",
        "",
        f"# {name}",
        "",
        f"A drafter for the target {record['target']}: it guesses that model's next tokens and is of no use alone.",
        f"It has {record['parameters']:,} parameters and knows {record['known_tokens']:,} of the target's tokens,",
        "which `draft_vocabulary.json` lists.",
        "",
        "## Training",
        "",
        *_learned(record),
        f"- began as {begun}",
        f"- {record['steps']:,} steps of {record['batch_rows']} answers, {record['minutes']:g} minutes "
        f"({record['device']}, threads: {record['threads']})",
        *_optimised(record),
        "",
        "## Agreement",
        "",
        "The share of the target's tokens that were the first choice, along its answers to held-out questions; at",
        "a temperature above 0 with the target's own noise. Copying is prompt lookup alone, without a model.",
        "",
        agreement_table(record["agreement"]),
    ]
    return "\n".join(lines) + "\n"


def agreement_table(agreement: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The measured agreement as a Markdown table."""
    rows = [["domain", "temperature", "drafter", "copying", "tokens"], ["---"] * 5]
    for domain, by_temperature in agreement.items():
        for temperature, figures in by_temperature.items():
            shares = [f"{figures['drafter']:.3f}", f"{figures['copying']:.3f}", f"{figures['tokens']:.0f}"]
            rows.append([domain, temperature, *shares])
    return _table(rows)


def head_card(name: str, record: Mapping[str, Any]) -> str:
    """The README.md of a draft head."""
    layers = ", ".join(map(str, record["feature_layers"]))
    lines = [
        "---",
        "pipeline_tag: text-generation",
        "tags:",
        "- speculative-decoding",
        "- eagle3",
        "---",
        "",
        f"# {name}",
        "",
        f"A draft head in the manner of EAGLE-3 (arXiv 2503.01840) for the target {record['target']}: one layer",
        f"that guesses that model's next tokens from what enters its layers {layers} (the number of layers",
        "names what leaves the last). It is of no use alone; a verifier holds it beside the target.",
        f"It has {record['parameters']:,} parameters and may draft {record['known_tokens']:,} tokens.",
        "",
        "## Training",
        "",
        *_learned(record),
        f"- {record['steps']:,} steps, {record['minutes']:g} minutes "
        f"({record['device']}, threads: {record['threads']})",
        *_optimised(record),
        "",
        "## Agreement",
        "",
        "Along the target's answers to held-out questions: how often the head's best guess was right, for the",
        "first token of a draft, and for each further one where all before it were right.",
        "",
        steps_table(record["agreement"]),
    ]
    return "\n".join(lines) + "\n"


def steps_table(agreement: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The measured steps of a draft head as a Markdown table."""
    rows = []
    for domain, by_temperature in agreement.items():
        for temperature, figures in by_temperature.items():
            shares = [f"{share:.3f}" for share in figures["steps"]]
            rows.append([domain, temperature, *shares, f"{figures['tokens']:.0f}"])
    steps = max((len(row) - 3 for row in rows), default=0)
    head = ["domain", "temperature", *(f"token {step + 1}" for step in range(steps)), "tokens"]
    return _table([head, ["---"] * len(head), *rows])


def _learned(record: Mapping[str, Any]) -> list[str]:
    """The lines of a card about what was learned from, and by which loss."""
    answers = ", ".join(f"{domain} {count}" for domain, count in record["answers"].items())
    return [
        f"- learned from {record['answer_tokens']:,} tokens of the target's own answers: {answers}; half of them",
        f"  greedy, half sampled at temperature {record['sampled_at']:g}",
        f"- loss: {record['method']}",
    ]


def _optimised(record: Mapping[str, Any]) -> list[str]:
    """The lines of a card about the optimiser."""
    return [
        f"- AdamW, learning rate {record['learning_rate']:g} with {record['warmup_steps']} steps of warm-up and",
        f"  cosine decay, weight decay {record['weight_decay']:g}, {record['numerics']}, seed {record['seed']}",
    ]


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
