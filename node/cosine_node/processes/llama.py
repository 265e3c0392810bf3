"""Questions about a GGUF file to llama.cpp, in a process of its own."""

from pathlib import Path
from typing import Any, Final

from cosine_node.processes.answer import answer_of
from cosine_protocol.errors import UsageError

LLAMA_PROCESS: Final = "cosine_node.engine.llama.process"


def ask_llama(question: str, file: Path, *told: object, timeout_s: float) -> Any:
    """Return what a function of `LLAMA_PROCESS` gives. Raises `UsageError` where there is no answer."""
    try:
        return answer_of(f"{LLAMA_PROCESS}:{question}", str(file), *told, timeout_s=timeout_s)
    except TimeoutError:
        raise UsageError(f"llama.cpp did not answer within {timeout_s:.0f} s") from None
    except (OSError, ValueError):
        raise UsageError("llama.cpp stopped at it") from None
