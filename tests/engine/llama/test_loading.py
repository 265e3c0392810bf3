"""llama.cpp's library, a GGUF file in it, and the self-test: faults are refused in a sentence."""

import ctypes.util
import gc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cosine_engine.base import PREFIX, OutOfMemory, PassAbandoned, Row
from cosine_engine.gguf.file import GgufFile
from cosine_engine.lanes.self_test import check_exactness
from cosine_engine.llama import library as module
from cosine_engine.llama.library import LlamaLibrary, llama_library
from cosine_engine.llama.loading import find_device
from cosine_engine.llama.model import LlamaContext, LlamaModel, token_bytes_of
from cosine_engine.pool_size import PoolSize
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.engine.engines import llama_engine
from tests.engine.gguf_architectures import TINY
from tests.engine.gguf_models import gguf_with_tower, tiny_gguf
from tests.engine.loaded import llama_file_engine
from tests.engine.tiny_models import VOCAB

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails
from pathlib import Path
from cosine_engine.base import Row
from cosine_engine.gguf.file import GgufFile
from cosine_engine.llama.library import llama_library
from cosine_engine.llama.loading import load_llama
from cosine_engine.load_options import LoadOptions
from cosine_engine.pool_size import PoolSize
from cosine_protocol.request import Sampling
how = LoadOptions(device="cpu", pool_size=PoolSize(exact_tokens=512))
engine = load_llama(GgufFile.open(Path(sys.argv[1])), how)
sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
print(engine.numerics, len(engine.forward([Row.chain(sequence, [5, 6, 7])])[0].choices))
"""


def test_a_wheel_of_another_build_and_none_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda _: "2031.1.1")
    with pytest.raises(UsageError, match=r"xllamacpp 2031\.1\.1 holds a llama\.cpp that this program does not"):
        llama_library.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(module, "PACKAGE", "no-such-package")
    with pytest.raises(UsageError, match=r"--engine llama needs the package no-such-package: pip install"):
        llama_library.__wrapped__()
    assert not module.is_installed()


def test_a_library_that_is_laid_out_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(llama_library().c._name)
    monkeypatch.setattr(module, "CONTEXT_PARAMS", [("n_ctx", ctypes.c_uint32, 4711)])
    with pytest.raises(UsageError, match="has other parameters than this program knows"):
        LlamaLibrary(path)


def test_what_is_no_library_or_not_llamas_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_bytes(b"not a library")
    for path in (tmp_path / "none.so", tmp_path / "text.so", Path(ctypes.util.find_library("c") or "libc.so.6")):
        with pytest.raises(UsageError, match=r"llama\.cpp in .* cannot be used"):
            LlamaLibrary(path)


def load(path: Path) -> LlamaModel:
    return LlamaModel(llama_library(), GgufFile.open(path))


@pytest.mark.parametrize(("weights", "value_bytes"), [("F32", 4), ("Q8_0", 2)])
def test_a_file_is_served_as_it_is(weights: str, value_bytes: int) -> None:
    # Two layers, two heads of keys and values, 16 wide.
    token_bytes = token_bytes_of(GgufFile.open(tiny_gguf(weights)))
    assert token_bytes == 2 * 2 * 2 * 16 * value_bytes
    engine = llama_file_engine(tiny_gguf(weights), pool_tokens=PoolSize(size_bytes=300 * token_bytes))
    assert engine.numerics == f"gguf:{weights}+llama.cpp"
    assert (engine.free_tokens, engine.vocab_tokens, engine.context_tokens) == (304, VOCAB, 256)
    sequence = engine.open(sampling=Sampling(temperature=1.0), prompt_tokens=3)
    assert len(engine.forward([Row.chain(sequence, [3, 4, 5])])[0].choices) == 3


def test_the_memory_goes_with_the_engine() -> None:
    engine = llama_file_engine(tiny_gguf())
    context: Any = engine._model
    assert context._handle and context.model.handle
    del engine
    gc.collect()
    assert (context._handle, context.model.handle) == (None, None)


def test_it_serves_where_torch_is_not_installed() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tiny_gguf())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("gguf:F32+llama.cpp 3\n", 0), done.stderr


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("llama_model_is_hybrid", "they keep a recurrent state"),
        ("llama_model_has_encoder", "is no model that generates token after token"),
    ],
)
def test_kinds_that_no_token_tree_suits_are_refused(
    function: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_library().c, function, lambda _: True)
    with pytest.raises(UsageError, match=sentence):
        load(tiny_gguf())


def test_a_damaged_file_is_refused_with_the_librarys_reason(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(tiny_gguf().read_bytes().replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"))
    with pytest.raises(UsageError, match=r"bad\.gguf cannot be loaded by llama\.cpp: .*blk\.1\.ffn_up"):
        load(tmp_path / "bad.gguf")
    (tmp_path / "half.gguf").write_bytes(tiny_gguf().read_bytes()[:-4000])
    with pytest.raises(UsageError, match=r"half\.gguf"):
        llama_file_engine(tmp_path / "half.gguf")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("expert_count", 100_000, "would end this process .*n_expert"),
        ("rope.scaling.type", "mystery", "would end this process .*rope_scaling_type"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "negative llama.attention.layer_norm_rms_epsilon"),
        ("block_count", "2", "llama.block_count"),
    ],
)
def test_what_llama_would_assert_or_refuse_is_a_sentence(
    key: str, value: object, reason: str, tmp_path: Path
) -> None:
    file = TINY["llama"].told(**{key: value}).write(tmp_path / "odd.gguf")
    with pytest.raises(UsageError, match=rf"odd\.gguf .*{reason}"):
        llama_file_engine(file)


def test_a_file_with_a_tower_for_images_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a tower for images or sounds.* use --engine torch"):
        load(gguf_with_tower(tmp_path / "odd.gguf"))


def test_devices_are_found_by_the_names_that_users_give() -> None:
    cards: Any = SimpleNamespace(devices=lambda: {"cuda0": 7, "cuda1": 8, "mtl0": 9})
    none: Any = SimpleNamespace(devices=dict)
    names = ("auto", "cpu", "cuda", "cuda:1", "metal", "mps")
    assert [find_device(cards, name) for name in names] == [7, None, 7, 8, 9, 9]
    assert [find_device(none, name) for name in ("auto", "cpu")] == [None, None]
    for library, name in [(none, "cuda"), (cards, "cuda:2"), (cards, "vulkan")]:
        with pytest.raises(UsageError, match=f"has no device '{name}' on this machine; it has cpu"):
            find_device(library, name)
    for name in ("tpu", "cuda:x", ""):
        with pytest.raises(UsageError, match=r"is no device of llama\.cpp"):
            find_device(cards, name)


def _shares_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix is shared without its first token."""
    own = LlamaContext.share
    monkeypatch.setattr(
        LlamaContext, "share", lambda self, source, target, start, stop: own(self, source, target, start + 1, stop)
    )


def _mixes_up_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of a pass are those of the token before."""
    own = LlamaContext.logits
    monkeypatch.setattr(LlamaContext, "logits", lambda self, fed: np.roll(own(self, fed), 1, axis=0))


@pytest.mark.parametrize(("plant", "weights"), [(_shares_too_little, "F32"), (_mixes_up_rows, "Q8_0")])
def test_a_fault_is_refused_in_a_sentence(
    plant: Callable[[pytest.MonkeyPatch], None], weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llama_engine(pool_tokens=256, weights=weights)
    plant(monkeypatch)
    with pytest.raises(UsageError, match=r"tiny cannot be served exactly .* gave other logits"):
        check_exactness(engine, name="tiny", library="llama.cpp", is_exact=weights == "F32")


@pytest.mark.parametrize("error", [PassAbandoned, OutOfMemory])
def test_a_pass_that_fails_leaves_nothing_behind(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llama_engine(pool_tokens=512)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=4)
    engine.forward([Row.chain(sequence, [9])])
    engine.keep(sequence, [0])
    tree = Row(sequence, (1, 2, 3), (0, 1, 2), (PREFIX, 0, 0))
    with monkeypatch.context() as patched:
        if error is PassAbandoned:
            # As by another thread during the pass.
            patched.setattr(engine._model, "begin", engine.abandon)
        else:
            patched.setattr(llama_library().c, "llama_decode", lambda *_: -2)
        with pytest.raises(error):
            engine.forward([tree])
    assert (engine.live_tokens, engine.free_lanes) == (1, 63)
    engine.abandon()
    assert len(engine.forward([tree])[0].choices) == 3
