"""What a drafter knew stays as it was when it learns words; new ones are as likely together as all unknown were."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.learning.finetuning import LEAST_TIMES, grown, in_earlier_ids

KNOWN = DraftVocabulary((2, 3, 5, 8, 13))


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(4)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=KNOWN.reserved_id + 1,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()


def test_tokens_that_come_often_are_learned_and_others_are_not(model: LlamaForCausalLM) -> None:
    often, rare = (7,) * LEAST_TIMES, (9,) * (LEAST_TIMES - 1)
    larger = grown(model, KNOWN, [(*often, 2, 3), rare])
    assert larger is not None
    assert larger.vocabulary.target_ids == (2, 3, 5, 7, 8, 13)
    assert grown(model, KNOWN, [rare, (2, 3, 5)]) is None


@torch.no_grad()
def test_what_was_known_is_judged_as_before(model: LlamaForCausalLM) -> None:
    larger = grown(model, KNOWN, [(7, 1) * LEAST_TIMES])
    assert larger is not None
    text = (5, 2, 13, 8)
    before, after = (
        one(input_ids=torch.tensor([ids.own_tokens(text)])).logits
        for one, ids in ((model, KNOWN), (larger.model.eval(), larger.vocabulary))
    )
    places = torch.tensor(larger.vocabulary.own_tokens(KNOWN.target_ids))
    torch.testing.assert_close(after[..., places], before[..., : KNOWN.reserved_id])
    # The two new ones begin as likely as the reserved id.
    reserved = before[..., KNOWN.reserved_id, None].expand(-1, -1, 3)
    new = [larger.vocabulary.own_tokens((token,))[0] for token in (1, 7)]
    torch.testing.assert_close(after[..., [*new, larger.vocabulary.reserved_id]], reserved)


def test_in_earlier_ids_all_that_is_new_joins_the_reserved_id() -> None:
    logs = torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]).log()
    joined = in_earlier_ids(logs, torch.tensor([0, 2])).exp()
    torch.testing.assert_close(joined, torch.tensor([0.1, 0.3, 0.6]))
