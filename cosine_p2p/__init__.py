"""The client library of CoSine P2P: text from a swarm, exactly the target model's.

from cosine_p2p import Client

client = Client(initial_peers=[...], target="zoo:target")
print(client.generate("Once upon a time", max_new_tokens=64).text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cosine_protocol.__version__ import __version__
from cosine_protocol.errors import (
    ClockOff,
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    OptionRefused,
    PeerLost,
    PromptRefused,
    PromptTooLong,
    UsageError,
)

if TYPE_CHECKING:
    from cosine_p2p.blocking import Client, TextStream
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.replies.parts import CallArguments, CallBegun, Content, Reasoning, ToolCall
    from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
    from cosine_p2p.request.logprobs import LikelyToken, NamedToken, TokenLogprob
    from cosine_p2p.request.options import ClientOptions, GenerationOptions, Prompt
    from cosine_p2p.request.origins import Origin, TokenOrigin, told_origins
    from cosine_p2p.request.results import (
        AppliedConfig,
        AuditReport,
        Chunk,
        DrafterReport,
        Generation,
        Observer,
        Progress,
        SwarmReport,
        Usage,
        VerifierReport,
    )
    from cosine_p2p.session.run import AsyncTextStream, Run
    from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
    from cosine_p2p.trust.evidence import Evidence

__all__ = [
    "AppliedConfig", "AsyncClient", "AsyncTextStream", "AuditReport", "CallArguments", "CallBegun", "Chat", "Chunk",
    "Client", "ClientOptions", "ClockOff", "Content", "CosineError", "DrafterReport", "Evidence", "Generation",
    "GenerationFailed", "GenerationOptions", "GenerationTimedOut", "LikelyToken", "NamedToken", "NamedTool",
    "Observer", "OptionRefused", "Origin", "PeerLost", "Progress", "Prompt", "PromptRefused", "PromptTooLong",
    "Reasoning", "Run", "SwarmReport", "TextStream", "TextTokenizer", "TokenLogprob", "TokenOrigin", "ToolCall",
    "ToolChoice", "Usage", "UsageError", "VerifierReport", "__version__", "load_tokenizer", "told_origins",
]  # fmt: skip

_NAMES: Final = {
    "blocking": "Client TextStream",
    "client": "AsyncClient",
    "replies.parts": "CallArguments CallBegun Content Reasoning ToolCall",
    "request.chat": "Chat NamedTool ToolChoice",
    "request.logprobs": "LikelyToken NamedToken TokenLogprob",
    "request.options": "ClientOptions GenerationOptions Prompt",
    "request.origins": "Origin TokenOrigin told_origins",
    "request.results": "AppliedConfig AuditReport Chunk DrafterReport Generation Observer Progress "
    "SwarmReport Usage VerifierReport",
    "session.run": "AsyncTextStream Run",
    "text.tokenizer": "TextTokenizer load_tokenizer",
    "trust.evidence": "Evidence",
}
HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The modules of names that are imported when first used (PEP 562): a node or a help text needs no client."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
