"""Runs llama.cpp on a GGUF file in a child process."""

from pathlib import Path
from typing import Any, Final

from cosine_node.processes.answer import answer_of
from cosine_protocol.errors import UsageError

LLAMA_PROCESS: Final = "cosine_node.engine.llama.process"


def ask_llama(question: str, file: Path, *told: object, timeout_s: float) -> Any:
    """Call a function of `LLAMA_PROCESS`. Raises `UsageError` if it fails."""
    try:
        return answer_of(f"{LLAMA_PROCESS}:{question}", str(file), *told, timeout_s=timeout_s)
    except TimeoutError:
        raise UsageError(f"llama.cpp did not answer within {timeout_s:.0f} s") from None
    except (OSError, ValueError):
        raise UsageError("llama.cpp crashed") from None
