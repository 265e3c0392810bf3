"""Tests of plans, which are made without a network."""

from typing import Any

import pytest

from cosine_p2p.request.options import DEFAULTS, TEXT_DEFAULTS, ClientOptions, merge_options
from cosine_p2p.session.job import AnnouncedVerifier
from cosine_p2p.session.plan import Ask, GenerationPlan, RequestForm, forms_of
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import OptionRefused, PromptTooLong
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import MAX_EOS_TOKENS, AskedLogprobs, Constraint, ConstraintKind, Sampling, Shaping
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


def test_options_become_the_request_of_every_verifier_of_the_target() -> None:
    (form,) = forms(verifier(1), temperature=0.5, seed=7, presence_penalty=1.0, min_tokens=3)
    request = form.request
    shaping = Shaping(presence_penalty=1.0, min_tokens=3, held_back=(2,))
    assert request.sampling == Sampling(temperature=0.5, seed=7, shaping=shaping)
    assert (request.prompt, request.eos, request.max_new_tokens, request.logprobs) == (PROMPT, (2,), 200, None)
    assert (request.client, request.nonce, request.numerics) == ("client", bytes(16), "float32")
    (form,) = forms(verifier(1), regex="a+", prompt_logprobs=2, eos=[5])
    assert form.request.sampling == Sampling(seed=1, constraint=Constraint(ConstraintKind.REGEX, "a+", (5,)))
    assert form.request.logprobs == AskedLogprobs(2, of_prompt=True)


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
        ({"regex": "a", "grammar": "start: A"}, {}, "regex and grammar say what the text must be"),
        ({"regex": "a", "ignore_eos": True}, {}, "must be able to end"),
        ({"regex": "a", "min_tokens": 1}, {}, "goes with no bad_words, nor with min_tokens"),
        ({"max_new_tokens": 100_000, "logprobs": 20}, {"context_tokens": 10**6}, "are too many; ask for fewer"),
    ],
)
def test_what_no_verifier_can_serve_names_the_option(
    options: dict[str, Any], record: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionRefused, match=sentence):
        forms(verifier(1, **record), **options)


def test_a_prompt_without_room_for_a_text_is_too_long() -> None:
    with pytest.raises(PromptTooLong, match="100 tokens > 99 that fit"):
        forms(verifier(1, context_tokens=100))


def test_a_job_has_all_that_a_session_needs_as_values() -> None:
    plan = plan_of(timeout_s=5.0, coordination="verifier", prompt_window_tokens=10)
    able = verifier(1, pass_us=60_000, four_tokens_permille=1500)
    (form,) = forms_of(plan.ask, [able])
    job = plan.job(form)
    assert job == plan.job(form)
    assert job.verifiers == {able.peer_id: AnnouncedVerifier(0.06, 0, 1500)}
    assert (job.deadline_s, job.coordination) == (105.0, Coordination.VERIFIER)
    assert len(job.shown_request.prompt) == 10
