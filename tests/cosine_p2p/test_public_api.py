"""Tests of the names and fields of the Python API."""

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

import cosine_p2p
from cosine_p2p import AsyncClient, Client, GenerationOptions

PUBLIC = {
    "AppliedConfig", "AsyncClient", "AsyncTextStream", "Chunk", "Client", "ClientOptions", "CosineError",
    "DrafterReport", "Generation", "GenerationFailed", "GenerationOptions", "GenerationTimedOut", "Observer",
    "Origin", "PeerLost", "Progress", "Prompt", "PromptRefused", "PromptTooLong", "Run", "UsageError",
    "VerifierReport", "Chat", "NamedTool", "ToolCall", "ToolChoice", "LikelyToken", "NamedToken", "TextStream",
    "TextTokenizer", "TokenLogprob", "__version__", "load_tokenizer", "told_origins", "Usage", "SwarmReport",
    "AuditReport", "Evidence", "TokenOrigin", "Content", "Reasoning", "CallBegun", "CallArguments", "ClockOff",
    "OptionRefused",
}  # fmt: skip


def test_what_is_public() -> None:
    assert set(cosine_p2p.__all__) == PUBLIC
    assert all(hasattr(cosine_p2p, name) for name in PUBLIC)


@pytest.mark.parametrize(
    "method",
    [AsyncClient.generate, AsyncClient.stream, AsyncClient.start, Client.generate, Client.submit, Client.stream],
)
def test_help_lists_the_options_of_a_generation(method: Callable[..., object]) -> None:
    parameters = inspect.signature(method).parameters
    assert list(parameters)[:2] == ["self", "prompt"]
    named = [name for name in parameters if name not in ("otherwise", "cache_scope")]
    assert named[2:] == list(GenerationOptions.__annotations__)
    assert (parameters["timeout_s"].default, parameters["seed"].default) == (600.0, None)


def test_every_name_is_there_before_it_is_used_and_no_other_is() -> None:
    code = (
        "import cosine_p2p, sys\n"
        "assert not {'cosine_p2p.client', 'tokenizers'} & sys.modules.keys()\n"
        "assert set(cosine_p2p.__all__) <= set(dir(cosine_p2p))\n"
        "from cosine_p2p import *\n"
        "assert AsyncClient.__module__ == 'cosine_p2p.client' and Run and Prompt and UsageError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'Clients'"):
        getattr(cosine_p2p, "Client" + "s")
