from pathlib import Path

import numpy as np
import pytest
import torch

from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.model import FedToken, LlamaContext, LlamaModel
from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import LocalProtocolError, UsageError
from tests.node.engine.gguf_models import tiny_gguf
from tests.node.engine.random_walk import fresh_logits
from tests.node.engine.tiny_models import VOCAB, tiny_llama


def load(path: Path) -> LlamaModel:
    return LlamaModel(llama_library(), GgufFile.open(path))


@pytest.fixture
def context() -> LlamaContext:
    return LlamaContext(load(tiny_gguf()), tokens=256, lanes=4, pass_tokens=32, threads=1)


def test_a_pass_over_lanes_gives_the_models_own_logits(context: LlamaContext) -> None:
    text = [5, 9, 77, 140, 3, 8]
    fed = [FedToken(token, position, [2], position > 3) for position, token in enumerate(text)]
    found = context.logits(fed).copy()
    assert np.allclose(found, fresh_logits(tiny_llama(), text)[4:], atol=1e-5)
    context.share(2, 0, 0, 4)
    other = context.logits([FedToken(50, 4, [0], True)])
    assert np.allclose(other, fresh_logits(tiny_llama(), [*text[:4], 50])[-1:], atol=1e-5)
    context.forget(2, 3)
    again = context.logits([FedToken(140, 3, [2], True)])
    assert np.allclose(again, fresh_logits(tiny_llama(), text[:4])[-1:], atol=1e-5)


def test_a_token_that_does_not_follow_its_lane_is_refused(context: LlamaContext) -> None:
    context.logits([FedToken(5, 0, [1], False)])
    with pytest.raises(LocalProtocolError, match=r"llama\.cpp refused a pass: .*inconsistent sequence positions"):
        context.logits([FedToken(5, 4, [1], True)])


def test_nothing_is_left_in_a_memory_that_was_cleared(context: LlamaContext) -> None:
    context.logits([FedToken(5, 0, [1], False)])
    context.clear()
    assert context.logits([FedToken(5, 0, [1], True)]).shape == (1, VOCAB)


@pytest.mark.parametrize(("weights", "value_bytes"), [("F32", 4), ("F16", 2), ("Q8_0", 2)])
def test_keys_and_values_take_what_their_type_takes(weights: str, value_bytes: int) -> None:
    model = load(tiny_gguf(weights))
    # Two layers, two heads of keys and values, 16 wide.
    assert model.token_bytes == 2 * 2 * 2 * 16 * value_bytes
    assert (model.vocab_tokens, model.has_state, model.is_decoder) == (VOCAB, False, True)
    model.close()
    model.close()


def test_a_file_of_an_unknown_kind_is_refused_with_the_librarys_reason(tmp_path: Path) -> None:
    data = tiny_gguf().read_bytes().replace(b"llama", b"lhama")
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(UsageError, match=r"other\.gguf cannot be loaded by llama\.cpp: .*lhama"):
        load(tmp_path / "other.gguf")


def test_a_file_without_one_of_its_tensors_is_refused(tmp_path: Path) -> None:
    data = tiny_gguf().read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    (tmp_path / "hole.gguf").write_bytes(data)
    with pytest.raises(UsageError, match=r"hole\.gguf cannot be loaded by llama\.cpp: .*blk\.1\.ffn_up"):
        load(tmp_path / "hole.gguf")


def test_more_lanes_than_llama_has_are_refused() -> None:
    with pytest.raises(UsageError, match=r"llama\.cpp cannot run this model: .*n_seq_max"):
        LlamaContext(load(tiny_gguf()), tokens=256, lanes=1000, pass_tokens=32, threads=1)


def test_logits_equal_those_of_transformers_in_float32(context: LlamaContext) -> None:
    text = torch.randint(3, VOCAB, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    found = context.logits([FedToken(token, position, [0], True) for position, token in enumerate(text)])
    assert np.abs(found - fresh_logits(tiny_llama(), text).numpy()).max() < 2e-5
