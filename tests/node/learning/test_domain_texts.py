"""The project's prompts tell a drafter's own domain from others."""

import pytest

from cosine_node import zoo
from cosine_node.engine.torch.loading import load_engine
from cosine_node.learning.decision import refreshed_expertise
from cosine_node.learning.domain_texts import NEAR, domain_nll, own_and_foreign
from cosine_p2p.text.tokenizer import TextCodec
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from tests.thoroughness import THOROUGH


def codec(*, has_template: bool = True) -> TextCodec:
    files = TokenizerFiles.read(zoo.tokenizer_folder())
    assert files is not None
    return TextCodec({name: data for name, data in files.files.items() if has_template or name == "tokenizer.json"})


@pytest.mark.parametrize(
    "own", ["literature", *(pytest.param(own, marks=THOROUGH) for own in zoo.DOMAINS if own != "literature")]
)
def test_an_expert_announces_no_domain_of_others(own: str) -> None:
    drafter = load_engine(str(zoo.folder(f"draft-{own}")), pool_tokens=4096)
    nll = domain_nll(drafter, codec())
    least, most = own_and_foreign(nll, own)
    assert NEAR < least <= most < 3
    assert refreshed_expertise((own,), nll, factor=NEAR) == (own,)


def test_without_a_template_what_is_said_in_chats_is_read() -> None:
    drafter = load_engine(str(zoo.folder("draft-dialogue")), pool_tokens=4096)
    nll = domain_nll(drafter, codec(has_template=False), ["dialogue", "code"])
    assert 0 < nll["dialogue"] < nll["code"]


def test_prompts_that_are_longer_than_the_context_do_not_count() -> None:
    drafter = load_engine(str(zoo.folder("draft-code")), pool_tokens=16)
    assert domain_nll(drafter, codec(), ["code"]).keys() <= {"code"}
