"""Tests of plans, which are made without a network."""

from typing import Any

import pytest

from cosine_p2p.request.options import DEFAULTS, TEXT_DEFAULTS, ClientOptions, merge_options
from cosine_p2p.session.plan import Ask, GenerationPlan, RequestForm, forms_of
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.errors import OptionRefused, PromptTooLong
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import MAX_EOS_TOKENS
from tests.cosine_p2p.samples import identity_of, record_of

PROMPT = (1,) * 100


def verifier(number: int, **changes: Any) -> NodeRecord:
    return record_of(identity_of(number), now_s=0.0, **{"expertise": (), **changes})


def plan_of(**options: Any) -> GenerationPlan:
    asked = merge_options(DEFAULTS, options, ClientOptions)
    ask = Ask(tokens=PROMPT, options={**TEXT_DEFAULTS, **asked}, client="client", nonce=bytes(16), seed=1)
    drafters = (verifier(8), verifier(9))
    return GenerationPlan(ask=ask, options=asked, strategy=STRATEGIES["cosine"], drafters=drafters, began_s=100.0)


def forms(*verifiers: NodeRecord, standing: dict[str, int] | None = None, **options: Any) -> list[RequestForm]:
    return forms_of(plan_of(**{"max_new_tokens": 200, **options}).ask, verifiers, standing=standing or {})


def test_a_short_context_shortens_nobody_else_s_text() -> None:
    liar, honest, other = verifier(0, context_tokens=101), verifier(1), verifier(2, numerics="bfloat16")
    found = [(form.request.max_new_tokens, form.verifiers) for form in forms(liar, honest)]
    assert found == [(200, (honest,)), (1, (liar,))]
    # Texts differ by numerics, and those of the highest standing come first.
    ranked = forms(honest, other, standing={other.peer_id: 2})
    assert [form.request.numerics for form in ranked] == ["bfloat16", "float32"]


@pytest.mark.parametrize(
    ("options", "record", "sentence"),
    [
        ({"stop_token_ids": range(10, 10 + MAX_EOS_TOKENS)}, {}, "At most 64 tokens may end a text"),
        ({"regex": "a", "grammar": "start: A"}, {}, "regex and grammar constrain the text"),
        ({"regex": "a", "ignore_eos": True}, {}, "must be able to end"),
        ({"regex": "a", "min_tokens": 1}, {}, "goes with no bad_words, nor with min_tokens"),
        ({"max_new_tokens": 100_000, "logprobs": 20}, {"context_tokens": 10**6}, "are too many; ask for fewer"),
    ],
)
def test_an_impossible_option_is_named(options: dict[str, Any], record: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        forms(verifier(1, **record), **options)


def test_a_prompt_without_room_for_a_text_is_too_long() -> None:
    with pytest.raises(PromptTooLong, match="100 tokens > 99 that fit"):
        forms(verifier(1, context_tokens=100))
