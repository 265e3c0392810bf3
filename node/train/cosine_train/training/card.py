"""The model card of a trained drafter; every figure comes from the record of its training."""

from collections.abc import Mapping, Sequence
from typing import Any


def drafter_card(name: str, record: Mapping[str, Any]) -> str:
    """Return the README.md of a drafter."""
    begun = f"the drafter {record['init']}" if record["init"] else "layers of the target, or an untrained model"
    about = [
        f"A drafter for the target {record['target']}: it guesses that model's next tokens and is of no use alone.",
        f"It has {record['parameters']:,} parameters and knows {record['known_tokens']:,} of the target's tokens,",
        "which `draft_vocabulary.json` lists.",
    ]
    agreement = [
        "The share of the target's tokens that were the first choice, along its answers to held-out questions; at",
        "a temperature above 0 with the target's own noise. Copying is prompt lookup alone, without a model.",
        "",
        agreement_table(record["agreement"]),
    ]
    steps = [f"- began as {begun}", f"- {record['steps']:,} steps of {record['batch_rows']} answers"]
    return _card(name, record, about, steps, agreement, library=["library_name: transformers"], tags=[])


def agreement_table(agreement: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the measured agreement as a Markdown table."""
    rows = [["domain", "temperature", "drafter", "copying", "tokens"], ["---"] * 5]
    for domain, by_temperature in agreement.items():
        for temperature, figures in by_temperature.items():
            shares = [f"{figures['drafter']:.3f}", f"{figures['copying']:.3f}", f"{figures['tokens']:.0f}"]
            rows.append([domain, temperature, *shares])
    return _table(rows)


def head_card(name: str, record: Mapping[str, Any]) -> str:
    """Return the README.md of a draft head."""
    layers = ", ".join(map(str, record["feature_layers"]))
    about = [
        f"A draft head in the manner of EAGLE-3 (arXiv 2503.01840) for the target {record['target']}: one layer",
        f"that guesses that model's next tokens from what enters its layers {layers} (the number of layers",
        "names what leaves the last). It is of no use alone; a verifier holds it beside the target.",
        f"It has {record['parameters']:,} parameters and may draft {record['known_tokens']:,} tokens.",
    ]
    agreement = [
        "Along the target's answers to held-out questions: how often the head's best guess was right, for the",
        "first token of a draft, and for each further one where all before it were right.",
        "",
        steps_table(record["agreement"]),
    ]
    return _card(name, record, about, [f"- {record['steps']:,} steps"], agreement, library=[], tags=["- eagle3"])


def steps_table(agreement: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the measured steps of a draft head as a Markdown table."""
    rows = []
    for domain, by_temperature in agreement.items():
        for temperature, figures in by_temperature.items():
            shares = [f"{share:.3f}" for share in figures["steps"]]
            rows.append([domain, temperature, *shares, f"{figures['tokens']:.0f}"])
    steps = max((len(row) - 3 for row in rows), default=0)
    head = ["domain", "temperature", *(f"token {step + 1}" for step in range(steps)), "tokens"]
    return _table([head, ["---"] * len(head), *rows])


def _card(
    name: str,
    record: Mapping[str, Any],
    about: Sequence[str],
    steps: Sequence[str],
    agreement: Sequence[str],
    *,
    library: Sequence[str],
    tags: Sequence[str],
) -> str:
    answers = ", ".join(f"{domain} {count}" for domain, count in record["answers"].items())
    trained = f"{record['minutes']:g} minutes ({record['device']}, threads: {record['threads']})"
    front = [*library, "pipeline_tag: text-generation", "tags:", "- speculative-decoding", *tags]
    training = [
        f"- learned from {record['answer_tokens']:,} tokens of the target's own answers: {answers}; half of them",
        f"  greedy, half sampled at temperature {record['sampled_at']:g}",
        f"- loss: {record['method']}",
        *steps[:-1],
        f"{steps[-1]}, {trained}",
        f"- AdamW, learning rate {record['learning_rate']:g} with {record['warmup_steps']} steps of warm-up and",
        f"  cosine decay, weight decay {record['weight_decay']:g}, {record['numerics']}, seed {record['seed']}",
    ]
    lines = ["---", *front, "---", "", f"# {name}", "", *about, "", "## Training", "", *training]
    return "\n".join([*lines, "", "## Agreement", "", *agreement]) + "\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
