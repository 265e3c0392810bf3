from pathlib import Path

import pytest

from cosine_node import zoo
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.training.target_source import Answering, LocalSource, Shape, SwarmSource
from cosine_protocol.errors import UsageError
from tests.cosine_p2p.test_blocking import joining

KNOWN = DraftVocabulary((5, 6, 70))
ANSWERING = Answering(slots=2, new_tokens=4)


def local(model: str, *, width: int | None = None) -> LocalSource:
    return LocalSource(model=model, answering=ANSWERING, layers=(0, -1), width=width, device="cpu", seed=0)


def test_a_drafter_has_the_targets_layers_or_a_width_of_its_own() -> None:
    taken, new = (local("zoo:target", width=width).new_drafter(KNOWN) for width in (None, 64))
    assert (taken.config.hidden_size, taken.config.num_hidden_layers, taken.config.vocab_size) == (256, 2, 4)
    assert (new.config.hidden_size, new.config.num_hidden_layers, new.config.vocab_size) == (64, 2, 4)
    assert new.config.max_position_embeddings == taken.config.max_position_embeddings


def test_a_small_width_has_one_head_and_some_feed_forward() -> None:
    shape = Shape(layers=1, width=8, vocabulary_size=4, context_tokens=16)
    assert (shape.heads, shape.feed_forward_width) == (1, 32)


def test_the_tokenizer_is_the_targets() -> None:
    assert local("zoo:target").codec.encode("one two")


def test_a_target_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="tokenizer"):
        _ = local(str(zoo.folder("draft-code"))).codec


def test_a_target_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((zoo.folder("target") / "config.json").read_bytes())
    with pytest.raises(UsageError, match="cannot be read"):
        local(str(tmp_path)).target()


def test_a_swarm_gives_its_tokenizer_and_drafters_begin_untrained() -> None:
    source = SwarmSource(join=joining(), options={}, answering=ANSWERING, layers=1, width=64, seed=0)
    assert source.codec.encode("ab")
    assert source.target() is source.target()
    assert source.new_drafter(KNOWN).config.hidden_size == 64
