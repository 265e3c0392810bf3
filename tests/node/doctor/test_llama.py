import pytest

from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.model_files import look_at_llama, read_model
from cosine_node.engine.llama import library as llama_library
from cosine_node.engine.pool_size import PoolSize
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_protocol.errors import UsageError
from tests.node.engine.gguf_models import tiny_gguf

LLAMA = EngineChoice(kind=EngineKind.LLAMA, device="cpu")


def test_the_library_and_the_memory_of_a_file_are_told() -> None:
    model = read_model(str(tiny_gguf("Q8_0")))
    library, memory = look_at_llama(model, LLAMA, base_bytes=100 << 20)
    assert (library.status, memory.status) == (CheckStatus.OK, CheckStatus.OK)
    assert "xllamacpp has it, with the devices cpu" in library.found
    # The weights stay as they are in the file, keys and values have 16 bits: 16 requests fill the context of 256.
    assert "of KV cache for 4096 tokens" in memory.found
    assert "100 MiB of Python and libraries" in memory.found
    assert model.weight_bytes < 200_000


def test_a_device_that_is_not_there_is_a_failure() -> None:
    [only] = look_at_llama(
        read_model(str(tiny_gguf())), EngineChoice(kind=EngineKind.LLAMA, device="cuda"), base_bytes=0
    )
    assert only.status is CheckStatus.FAILURE
    assert "has no device 'cuda' on this machine" in only.found


def test_without_the_wheel_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise UsageError("--engine llama needs the package xllamacpp: pip install it.")

    monkeypatch.setattr(llama_library, "llama_library", missing)
    [only] = look_at_llama(read_model(str(tiny_gguf())), LLAMA, base_bytes=0)
    assert (only.status, "needs the package xllamacpp" in only.found) == (CheckStatus.FAILURE, True)


def test_what_is_no_such_file_is_a_failure() -> None:
    [only] = look_at_llama(read_model("zoo:target"), LLAMA, base_bytes=0)
    assert "--engine llama runs GGUF files, and 'target' is none" in only.found


def test_what_torch_runs_is_no_business_of_llamas() -> None:
    assert look_at_llama(read_model("zoo:target"), EngineChoice(device="cpu"), base_bytes=0) == []


def test_too_little_memory_is_a_failure() -> None:
    options = EngineChoice(kind=EngineKind.LLAMA, device="cpu", pool_size=PoolSize(size_bytes=1000))
    _, memory = look_at_llama(read_model(str(tiny_gguf())), options, base_bytes=0)
    assert memory.status is CheckStatus.FAILURE
    assert "The KV cache would hold" in memory.found
