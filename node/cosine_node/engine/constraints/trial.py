"""The trial of a constraint, for a process of its own: it may take any time, and its parent ends it.

Its tokens are the single bytes, so that it starts quickly; every text can be written with them.
"""

import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from cosine_node.engine.constraints.grammars import clause, fault_in, grammar_of, limits
from cosine_protocol.request import ConstraintKind

MAX_MEMORY_BYTES: Final = 2 << 30
"""Address space of the process, of which it takes 0.3 GB for a small constraint."""


class ByteTokens:
    """The tokenizer of single bytes, as llguidance wants it."""

    eos_token_id: int = 256
    bos_token_id: int | None = None
    tokens: Sequence[bytes] = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids: ClassVar[Sequence[int]] = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fault_of(kind: int, text: str) -> str:
    """What is wrong with a constraint, a clause; empty if nothing is."""
    try:
        grammar = grammar_of(kind, text)
    except (ValueError, RecursionError) as error:
        return clause(str(error))
    return fault_in(LLMatcher(LLTokenizer(TokenizerWrapper(ByteTokens())), grammar, log_level=0, limits=limits()))


def peak_bytes() -> int:
    """The most memory that this process has had; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def trial(kind: int, text: str) -> tuple[str, int]:
    """What is wrong with a constraint, a clause, empty if nothing is; and the bytes of memory that it took.

    Bounds the memory of this process.
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # The library's own part is no constraint's.
    fault_of(ConstraintKind.REGEX, "a")
    before_bytes = peak_bytes()
    return fault_of(kind, text), peak_bytes() - before_bytes
