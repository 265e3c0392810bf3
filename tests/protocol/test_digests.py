"""Rolling digests: the attachment law, and what a request's first digest depends on."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.digests import encode_request, extend_digest, request_digest, roll_digest
from cosine_protocol.limits import DIGEST_BYTES, MAX_TOKEN_ID
from cosine_protocol.request import Request, Sampling
from tests.protocol.samples import OWNER, request_of

TOKENS = st.lists(st.integers(0, MAX_TOKEN_ID))
CHANGES: dict[str, Any] = {
    "target_digest": bytes(32),
    "tokenizer_digest": bytes(32),
    "numerics": "bfloat16",
    "prompt": (1, 15043, 29892, 3187),
    "eos": (2,),
    "client": OWNER.peer_id,
    "nonce": bytes(16),
}
SAMPLING_CHANGES: dict[str, Any] = {
    "temperature": 0.9,
    "top_k": 41,
    "top_p": 0.96,
    "min_p": 0.06,
    "repetition_penalty": 1.2,
    "seed": 1,
}


@given(digest=st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES), first=TOKENS, second=TOKENS)
def test_attachment_law(digest: bytes, first: list[int], second: list[int]) -> None:
    assert roll_digest(roll_digest(digest, first), second) == roll_digest(digest, first + second)


def test_rolling_is_extending_token_by_token() -> None:
    d_0 = request_digest(request_of())
    assert roll_digest(d_0, []) == d_0
    assert roll_digest(d_0, [5, 6]) == extend_digest(extend_digest(d_0, 5), 6)


def test_other_tokens_or_another_order_give_another_digest() -> None:
    d_0 = request_digest(request_of())
    assert len({roll_digest(d_0, tokens) for tokens in ([], [5], [6], [5, 6], [6, 5], [5, 5], [0], [0, 0])}) == 8


def test_every_field_has_a_change_to_try() -> None:
    assert {field.name for field in fields(Request)} == CHANGES.keys() | {"sampling", "max_new_tokens"}
    assert {field.name for field in fields(Sampling)} == SAMPLING_CHANGES.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_of_the_request_enters_its_digest(name: str) -> None:
    assert request_digest(request_of(**{name: CHANGES[name]})) != request_digest(request_of())


@pytest.mark.parametrize("name", SAMPLING_CHANGES)
def test_a_sampling_parameter_enters_the_digest(name: str) -> None:
    changed = replace(request_of().sampling, **{name: SAMPLING_CHANGES[name]})
    assert request_digest(request_of(sampling=changed)) != request_digest(request_of())


def test_the_length_limit_stays_out() -> None:
    assert request_digest(request_of(max_new_tokens=1)) == request_digest(request_of())


def test_where_one_field_ends_and_the_next_begins_is_part_of_the_encoding() -> None:
    moved = request_of(prompt=(1, 15043), eos=(29892, 3186))
    assert encode_request(moved) != encode_request(request_of())
    assert request_digest(request_of(prompt=())) != request_digest(request_of(prompt=(0,)))


def test_golden() -> None:
    assert request_digest(request_of()).hex() == "376ff5e94c4687d0ed042be72d4f64ea"
    assert roll_digest(request_digest(request_of()), [3, 5, 8]).hex() == "40f0b9a52f0a489625fa5d04b03bd631"
