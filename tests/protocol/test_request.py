"""Requests: bounds of sampling, digests, and keyed noise."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.digests import encode_request, extend_digest, request_digest, roll_digest
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import DIGEST_BYTES, MAX_NEW_TOKENS, MAX_TOKEN_ID, decode_body, encode_body
from cosine_protocol.request import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_REPETITION_PENALTY,
    MAX_SEED,
    MAX_TEMPERATURE,
    MIN_REPETITION_PENALTY,
    MIN_TOP_P,
    AskedLogprobs,
    Constraint,
    ConstraintKind,
    Request,
    Sampling,
    Shaping,
    TokenBias,
)
from tests.protocol.samples import OWNER, request_of

HUGE = 10**400
TOKENS = st.lists(st.integers(0, MAX_TOKEN_ID))


@given(digest=st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES), first=TOKENS, second=TOKENS)
def test_attachment_law(digest: bytes, first: list[int], second: list[int]) -> None:
    assert roll_digest(roll_digest(digest, first), second) == roll_digest(digest, first + second)
    assert roll_digest(digest, [*first, 5]) == extend_digest(roll_digest(digest, first), 5)
    assert roll_digest(digest, []) == digest


SHAPINGS = (
    Shaping(presence_penalty=1.0),
    Shaping(frequency_penalty=1.0),
    Shaping(logit_bias=(TokenBias(5, 1.0),)),
    Shaping(logit_bias=(TokenBias(5, 1.0), TokenBias(6, 1.0))),
    Shaping(logit_bias=(TokenBias(5, 2.0),)),
    Shaping(bad_words=((5,), (6,))),
    Shaping(bad_words=((5, 6),)),
    Shaping(min_tokens=5),
    Shaping(held_back=(5,)),
    Shaping(),
)

CONSTRAINTS_OF_TEXTS = (
    Constraint(ConstraintKind.SCHEMA, "{}", (2,)),
    Constraint(ConstraintKind.REGEX, "{}", (2,)),
    Constraint(ConstraintKind.REGEX, "{}1", (2,)),
    Constraint(ConstraintKind.REGEX, "{}", (2, 3)),
)


def test_every_field_of_a_request_but_its_length_limit_enters_its_digest() -> None:
    changes: dict[str, Any] = {
        "target_digest": bytes(32),
        "tokenizer_digest": bytes(32),
        "numerics": "bfloat16",
        "prompt": (1, 15043, 29892, 3187),
        "eos": (2,),
        "client": OWNER.peer_id,
        "nonce": bytes(16),
    }
    of_sampling: dict[str, Any] = {
        "temperature": 0.9,
        "top_k": 41,
        "top_p": 0.96,
        "min_p": 0.06,
        "repetition_penalty": 1.2,
        "seed": 1,
    }
    assert {field.name for field in fields(Request)} == changes.keys() | {"sampling", "max_new_tokens", "logprobs"}
    assert {field.name for field in fields(Sampling)} == of_sampling.keys() | {"shaping", "constraint"}
    changed = [request_of(**{name: value}) for name, value in changes.items()]
    changed += [
        request_of(sampling=replace(request_of().sampling, **{name: value})) for name, value in of_sampling.items()
    ]
    changed += [request_of(sampling=Sampling(shaping=shaping)) for shaping in SHAPINGS]
    changed += [request_of(sampling=Sampling(constraint=constraint)) for constraint in CONSTRAINTS_OF_TEXTS]
    changed += [request_of(sampling=Sampling(shaping=SHAPINGS[0], constraint=CONSTRAINTS_OF_TEXTS[0]))]
    changed += [request_of(logprobs=AskedLogprobs(top, of_prompt)) for top in (0, 1) for of_prompt in (False, True)]
    changed += [request_of(sampling=one.sampling, logprobs=AskedLogprobs(0)) for one in changed[-6:-4]]
    # Where one field ends and the next begins is part of the encoding.
    changed += [request_of(prompt=(1, 15043), eos=(29892, 3186)), request_of(prompt=()), request_of(prompt=(0,))]
    digests = {request_digest(request) for request in (request_of(), *changed)}
    assert len(digests) == len({encode_request(request) for request in changed}) + 1 == len(changed) + 1
    assert request_digest(request_of(max_new_tokens=1)) == request_digest(request_of())


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("temperature", (0, MAX_TEMPERATURE), (-0.1, MAX_TEMPERATURE * 2, HUGE)),
        ("top_k", (0, MAX_TOKEN_ID), (-1, 2.5, MAX_TOKEN_ID + 1)),
        ("top_p", (MIN_TOP_P, 1), (0.0, -1.0, 1.1, math.nan, math.inf)),
        (
            "repetition_penalty",
            (MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
            (0.0, -1.0, MAX_REPETITION_PENALTY * 2, -math.inf),
        ),
        ("seed", (0, MAX_SEED), (-1, 1.5, MAX_SEED + 1, HUGE)),
        ("presence_penalty", (-2, 2.0, 0), (-2.1, 2.1, "1", True, math.nan)),
        ("min_tokens", (0, MAX_NEW_TOKENS), (-1, 1.5, True, MAX_NEW_TOKENS + 1)),
        (
            "logit_bias",
            ((TokenBias(5, 100.0),) * MAX_BIASES,),
            ((TokenBias(5, 100.1),), (TokenBias(-1, 1.0),), (TokenBias(5, 1.0),) * (MAX_BIASES + 1)),
        ),
        (
            "bad_words",
            (((5,) * MAX_BAD_WORD_TOKENS,) * MAX_BAD_WORDS,),
            (((5,) * (MAX_BAD_WORD_TOKENS + 1),), ((5,),) * (MAX_BAD_WORDS + 1), ((-1,),)),
        ),
    ],
)
def test_the_bounds_of_sampling_and_shaping(name: str, accepted: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    def sampling(value: Any) -> Sampling:
        is_shaping = name in {field.name for field in fields(Shaping)}
        return Sampling(shaping=Shaping(**{name: value})) if is_shaping else Sampling(**{name: value})

    for value in accepted:
        request = request_of(sampling=sampling(value))
        assert decode_body(Request, encode_body(request)) == request
        assert len(request_digest(request)) == DIGEST_BYTES
    for value in refused:
        with pytest.raises(UsageError, match=rf"^{name} must .*\.$") as caught:
            sampling(value)
        assert "\n" not in str(caught.value)
