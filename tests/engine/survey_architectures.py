"""Writes docs/architectures.json: which causal language models of transformers the engine runs exactly.

A tiny model of each kind is put through the self-test; what passes it then serves requests, whose texts are
compared with those of `generate`. It takes some minutes: `python -m tests.engine.survey_architectures`.
"""

import json
import logging
import sys
import warnings
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers as tf
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cosine_engine.forward.support import UnsupportedModel, refuse_by_config
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.load_self_test import find_way
from cosine_protocol.request import Sampling
from tests.engine.random_serving import Asked, Position, draw_requests, serve_together
from tests.engine.surveyed_models import UNTRIED, tiny_configs
from tests.engine.tiny_models import VOCAB, build

DATA: Final = Path(__file__).parents[2] / "docs" / "architectures.json"
KINDS: Final = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
"""The `model_type` of every causal language model of the installed transformers."""
MOST_PARAMETERS: Final = 15_000_000
"""A choice: larger models were not reduced by the sizes of the survey and take too long."""
REQUESTS: Final = 6
TEXT_TOKENS: Final = 12
LONGEST_PROMPT: Final = 48
"""Choices: enough for a shared prefix of more than a page, and for texts longer than windows."""
MARGIN_TOLERANCE: Final = 1e-3
"""In logits: rounding moved the margins of exact models by 8e-6 at most."""


class Outcome(StrEnum):
    """The result for a kind of model, as the data name it."""

    PACKED = "Exact in packed passes"
    CACHED = "Exact with their own attention"
    STEPPED = "Exact with their own layers, token by token"
    WRONG = "Loaded and wrong"
    REFUSED = "Refused"
    NOT_TRIED = "Not tried"


def write_with_generate(model: Any, asked: Asked, tokens: int) -> list[Position]:
    """Return the greedy tokens after a prompt and their margins by transformers' loop and cache."""
    # Its own generation config may force the last token of a text, among others.
    model.generation_config = tf.GenerationConfig()
    written = model.generate(
        torch.tensor([asked.prompt]),
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    best = [scores[0].float().topk(2) for scores in written.scores]
    return [(int(ids[0]), float(values[0] - values[1])) for values, ids in best]


class Row(NamedTuple):
    """The outcome of a kind, and the reasons against it, for an exact one in bfloat16; else ""."""

    outcome: Outcome
    reason: str = ""
    reason_in_bfloat16: str = ""


def survey(model_type: str) -> Row:
    """Return the outcome for a kind of model: the worst of its variants."""
    if model_type in UNTRIED:
        return Row(Outcome.NOT_TRIED, UNTRIED[model_type])
    try:
        configs = tiny_configs(model_type)
        for config in configs:
            refuse_by_config(config)
            with torch.device("meta"):
                sized = tf.AutoModelForCausalLM.from_config(config)
            if sum(parameter.numel() for parameter in sized.parameters()) > MOST_PARAMETERS:
                return Row(Outcome.NOT_TRIED, "a small one is still too large")
    except UnsupportedModel as refusal:
        return Row(Outcome.REFUSED, refusal.reason)
    except Exception as error:
        # Broad, because configurations that fit no model may raise anything.
        return Row(Outcome.NOT_TRIED, _first_line(error))
    found = [_survey_variant(config) for config in configs]
    return max(found, key=lambda row: list(Outcome).index(row.outcome))


def _survey_variant(config: tf.PreTrainedConfig) -> Row:
    model = build(config)
    try:
        way = find_way(model)
    except UnsupportedModel as refusal:
        return Row(Outcome.REFUSED, refusal.reason)
    asked = draw_requests(REQUESTS, vocab_tokens=VOCAB, longest=LONGEST_PROMPT, seed=1, is_shaped=False)
    asked = [replace(request, sampling=Sampling()) for request in asked]
    reference = build(config)
    try:
        for request in asked:
            request.expected = write_with_generate(reference, request, TEXT_TOKENS)
    except Exception as error:
        # Broad, because models whose `generate` does not work may raise anything.
        return Row(Outcome.NOT_TRIED, f"its `generate` fails: {_first_line(error)}")
    engine = TorchEngine(model, pool_tokens=512, way=way)
    different = serve_together(engine, asked, at_once=3, seed=1, tolerance=MARGIN_TOLERANCE)
    if different:
        return Row(Outcome.WRONG, f"{different} of {len(asked)} texts are not those of `generate`")
    try:
        find_way(build(config).to(torch.bfloat16))
    except UnsupportedModel as refusal:
        return Row(Outcome[way.name], "", refusal.reason)
    return Row(Outcome[way.name])


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1].strip()[:150]}"


def write_data(rows: dict[str, Row]) -> str:
    """Return the data of the page: a line for each kind of model."""
    kinds = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(rows.items()))
    return f'{{"transformers": "{tf.__version__}", "kinds": {{\n{kinds}\n}}}}\n'


def read_data(text: str) -> dict[str, Outcome]:
    """Return the outcome of each kind of model in the data."""
    return {name: Outcome(outcome) for name, (outcome, *_) in json.loads(text)["kinds"].items()}


def main() -> None:
    """Survey all kinds and write the data."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows: dict[str, Row] = {}
    for model_type in KINDS:
        rows[model_type] = survey(model_type)
        sys.stdout.write(f"{model_type}: {'; '.join(filter(None, rows[model_type]))}\n")
        sys.stdout.flush()
    DATA.write_text(write_data(rows), "utf-8")


if __name__ == "__main__":
    main()
