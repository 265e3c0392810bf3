from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers as tf

from cosine_node.engine import loading
from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.loading import load_engine, resolve_device, resolve_dtype
from cosine_node.engine.support import UnsupportedModel
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.engine.tiny_models import VOCAB, tiny_llama


@pytest.fixture
def llama_folder(tmp_path: Path) -> str:
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    return str(tmp_path / "llama")


def test_a_folder_becomes_an_engine(llama_folder: str) -> None:
    engine = load_engine(llama_folder, device="cpu", pool_tokens=100)
    assert (engine.numerics, engine.vocab_tokens, engine.context_tokens) == ("float32", VOCAB, 256)
    assert engine.free_tokens == 112
    # Two layers, two heads of 16, keys and values, four bytes each.
    assert engine.pool_bytes == 112 * 2 * 2 * 16 * 2 * 4
    sequence = engine.open(sampling=Sampling(), prompt_tokens=1)
    assert len(engine.forward([Row(sequence, (3,), (0,), (PREFIX,))])[0].choices) == 1


def test_dtype_is_obeyed(llama_folder: str) -> None:
    assert load_engine(llama_folder, dtype="bfloat16", device="cpu", pool_tokens=32).numerics == "bfloat16"


def test_auto_dtype_is_the_stored_one_off_the_cpu() -> None:
    config = tf.LlamaConfig(dtype="bfloat16")
    assert resolve_dtype("auto", device=torch.device("cuda"), config=config) == torch.bfloat16
    assert resolve_dtype("auto", device=torch.device("cpu"), config=config) == torch.float32


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dtype": "int3"}, "no supported dtype"),
        ({"device": "abacus"}, "is no device"),
        ({"device": "cuda:99"}, "has no device 'cuda:99'"),
        ({"device": "meta"}, "no supported device"),
    ],
)
def test_bad_options_are_one_sentence(llama_folder: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as caught:
        load_engine(llama_folder, pool_tokens=32, **{"device": "cpu", **options})
    assert "\n" not in str(caught.value)


def test_missing_folder_and_missing_weights(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        load_engine(str(tmp_path / "absent"), device="cpu", pool_tokens=32)
    with pytest.raises(UsageError, match="No model can be read"):
        load_engine(str(tmp_path), device="cpu", pool_tokens=32)
    tiny_llama().config.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"weights .* cannot be read"):
        load_engine(str(tmp_path), device="cpu", pool_tokens=32)


def test_damaged_weights(llama_folder: str) -> None:
    (Path(llama_folder) / "model.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(UsageError, match=r"weights .* cannot be read"):
        load_engine(llama_folder, device="cpu", pool_tokens=32)


def test_unknown_hub_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object, **__: object) -> None:
        raise OSError("no-such/model is not a repository\nand a long explanation")

    monkeypatch.setattr(loading, "AutoConfig", SimpleNamespace(from_pretrained=absent))
    with pytest.raises(UsageError, match="No model can be read from 'no-such/model'"):
        load_engine("no-such/model", device="cpu", pool_tokens=32)


def test_mamba_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    tf.MambaConfig(vocab_size=VOCAB, hidden_size=64, num_hidden_layers=2).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=r"'mamba' cannot be used.*Supported are") as caught:
        load_engine(str(tmp_path), device="cpu", pool_tokens=32)
    assert caught.value.model_type == "mamba"


def test_auto_device_is_present() -> None:
    assert resolve_device("auto").type in ("cpu", "cuda", "mps")
