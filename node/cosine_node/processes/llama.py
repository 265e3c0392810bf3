"""Questions about a GGUF file to llama.cpp, in a process of its own."""

from pathlib import Path
from typing import Any, Final

from cosine_node.processes.answer import answer_of
from cosine_protocol.errors import UsageError

LLAMA_PROCESS: Final = "cosine_node.engine.llama.process"


def ask_llama(question: str, file: Path, told: object, *, timeout_s: float) -> Any:
    """Return the answer to one of the questions of `LLAMA_PROCESS`. Raises `UsageError` where there is none."""
    try:
        answer = answer_of(LLAMA_PROCESS, question, str(file), told=told, timeout_s=timeout_s)
    except TimeoutError:
        raise UsageError(f"llama.cpp did not answer within {timeout_s:.0f} s") from None
    except (OSError, ValueError):
        raise UsageError("llama.cpp stopped at it") from None
    if "error" in answer:
        raise UsageError(answer["error"])
    return answer["answer"]
