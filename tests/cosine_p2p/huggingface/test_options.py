"""Tests of the options of `generate` and of blocks of token ids."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from cosine_p2p.huggingface.arrays import for_streamer, like, rows_of, token_for_streamer
from cosine_p2p.huggingface.options import HONOURED, IGNORED, REFUSED, parse_options
from cosine_protocol.errors import UsageError


def test_every_attribute_of_a_configuration_is_known() -> None:
    known = HONOURED | IGNORED | REFUSED
    assert {name for name in vars(GenerationConfig()) if not name.startswith("_")} <= known
    assert not (HONOURED & IGNORED or HONOURED & REFUSED or IGNORED & REFUSED)


def test_defaults_are_those_of_transformers() -> None:
    options = parse_options({}, GenerationConfig())
    assert options == parse_options({})
    assert options == parse_options({}, GenerationConfig(**GenerationConfig._get_default_generation_params()))
    assert options.new_tokens(7) == 20
    assert options.for_client == {"repetition_penalty": 1.0, "stop": ()}
    assert parse_options({"do_sample": True}).for_client["top_k"] == 50


def test_a_whole_length_leaves_what_prompts_do_not_take() -> None:
    assert parse_options({"max_length": 20}).new_tokens(7) == 13
    assert parse_options({"max_length": 20, "max_new_tokens": 5}).new_tokens(7) == 5
    with pytest.raises(UsageError, match="max_length is 7"):
        parse_options({"max_length": 7}).new_tokens(7)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 2),
        ("logits_processor", [object()]),
        ("penalty_alpha", 0.6),
        ("output_scores", True),
        ("assistant_model", object()),
        ("typical_p", 0.9),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: Any) -> None:
    for config, keywords in ((None, {name: value}), (SimpleNamespace(**{name: value}), {})):
        with pytest.raises(UsageError, match=f"cannot honour {name} "):
            parse_options(keywords, config)


@pytest.mark.parametrize(
    "keywords",
    [
        {"num_beams": 1, "output_scores": False, "logits_processor": [], "stopping_criteria": None},
        {"min_length": 0, "typical_p": 1.0, "length_penalty": 1.0, "use_cache": True, "bos_token_id": 1},
        {"num_assistant_tokens": 8, "prompt_lookup_num_tokens": 10, "tokenizer": object()},
    ],
)
def test_what_asks_for_nothing_is_taken(keywords: dict[str, Any]) -> None:
    assert parse_options(keywords) == parse_options({})


def test_greedy_decoding_has_no_use_for_what_shapes_a_distribution() -> None:
    greedy = parse_options({"temperature": 0.3, "top_k": 5, "top_p": 0.5, "min_p": 0.1})
    assert greedy == parse_options({})
    with pytest.raises(UsageError, match="do_sample=False"):
        parse_options({"do_sample": True, "temperature": 0.0})
    with pytest.raises(UsageError, match="do_sample=True"):
        parse_options({"num_return_sequences": 2})
    with pytest.raises(UsageError, match="whole number of at least 1"):
        parse_options({"num_return_sequences": 0})


ROWS = [[1, 2, 3], [4, 5, 6]]
BLOCKS: list[Any] = [
    ROWS,
    tuple(map(tuple, ROWS)),
    np.array(ROWS, dtype=np.int32),
    torch.tensor(ROWS),
    torch.tensor(ROWS, dtype=torch.int32),
]


def test_a_block_is_answered_in_its_kind() -> None:
    wider = [(1, 2, 3, 7), (4, 5, 6, 8)]
    assert like(ROWS, wider) == [[1, 2, 3, 7], [4, 5, 6, 8]]
    array = like(np.array(ROWS, dtype=np.int32), wider)
    assert (type(array), array.dtype, array.tolist()) == (np.ndarray, np.int32, like(ROWS, wider))
    for dtype in (torch.int64, torch.int32):
        tensor = like(torch.tensor(ROWS, dtype=dtype), wider)
        assert (tensor.dtype, tensor.tolist()) == (dtype, like(ROWS, wider))


@pytest.mark.parametrize("block", BLOCKS)
def test_rows_come_out_of_any_kind_and_a_streamer_sees_shapes(block: Any) -> None:
    assert rows_of(block, "input_ids") == ((1, 2, 3), (4, 5, 6))
    shown = for_streamer(block)
    assert (tuple(shown.shape), shown.tolist()) == ((2, 3), list(map(list, ROWS)))
    assert list(shown[1].tolist()) == ROWS[1]
    token = token_for_streamer(shown, 7)
    assert (tuple(token.shape), token.tolist()) == ((1,), [7])


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        *(
            (text, "must hold token ids, not text; apply the tokenizer first")
            for text in ("text", ["text"], ("a", "b"))
        ),
        ({"input_ids": ROWS}, r"write generate\(\*\*inputs\)"),
        *(
            (other, r"must have the shape \[batch, length\]")
            for other in (None, 5, [], [1, 2], torch.tensor([1, 2]))
        ),
        ([[1], [1, 2]], "pad them on the left"),
        ([[1.5]], "whole numbers"),
    ],
)
def test_anything_else_is_refused_in_a_sentence(block: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"input_ids .*{sentence}"):
        rows_of(block, "input_ids")
