"""The client library of CoSine P2P: text from a swarm, exactly the target model's.

from cosine_p2p import Client

with Client(initial_peers=[...], target="zoo:target") as client:
    print(client.generate("Once upon a time", max_new_tokens=64).text)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cosine_protocol.__version__ import __version__
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    PeerLost,
    PromptRefused,
    PromptTooLong,
    UsageError,
)

if TYPE_CHECKING:
    from cosine_p2p.blocking import Client, TextStream
    from cosine_p2p.client import AsyncClient, AsyncTextStream
    from cosine_p2p.replies.parts import ToolCall
    from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
    from cosine_p2p.request.logprobs import LikelyToken, NamedToken, TokenLogprob
    from cosine_p2p.request.options import ClientOptions, GenerationOptions, Prompt
    from cosine_p2p.request.origins import Origin, told_origins
    from cosine_p2p.request.results import (
        AppliedConfig,
        Chunk,
        DrafterReport,
        Generation,
        Observer,
        Progress,
        VerifierReport,
    )
    from cosine_p2p.session.run import Run
    from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer

__all__ = [
    "AppliedConfig", "AsyncClient", "AsyncTextStream", "Chat", "Chunk", "Client", "ClientOptions", "CosineError",
    "DrafterReport", "Generation", "GenerationFailed", "GenerationOptions", "GenerationTimedOut", "LikelyToken",
    "NamedToken", "NamedTool", "Observer", "Origin", "PeerLost", "Progress", "Prompt", "PromptRefused",
    "PromptTooLong", "Run", "TextStream", "TextTokenizer", "TokenLogprob", "ToolCall", "ToolChoice", "UsageError",
    "VerifierReport", "__version__", "load_tokenizer", "told_origins",
]  # fmt: skip

HOMES: Final = {
    **dict.fromkeys(("Client", "TextStream"), "blocking"),
    **dict.fromkeys(("AsyncClient", "AsyncTextStream"), "client"),
    **dict.fromkeys(
        ("AppliedConfig", "Chunk", "DrafterReport", "Generation", "Observer", "Progress", "VerifierReport"),
        "request.results",
    ),
    **dict.fromkeys(("ClientOptions", "GenerationOptions", "Prompt"), "request.options"),
    **dict.fromkeys(("LikelyToken", "NamedToken", "TokenLogprob"), "request.logprobs"),
    **dict.fromkeys(("Origin", "told_origins"), "request.origins"),
    **dict.fromkeys(("Chat", "NamedTool", "ToolChoice"), "request.chat"),
    "ToolCall": "replies.parts",
    "Run": "session.run",
    **dict.fromkeys(("TextTokenizer", "load_tokenizer"), "text.tokenizer"),
}
"""The modules of names that are imported when first used (PEP 562): a node or a help text needs no client."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
