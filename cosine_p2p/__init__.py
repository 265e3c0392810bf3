"""The client library of CoSine P2P: text from a swarm, exactly the target model's.

from cosine_p2p import Client

with Client(initial_peers=[...], target="zoo:target") as client:
    print(client.generate("Once upon a time", max_new_tokens=64).text)
"""

from cosine_p2p.__version__ import __version__
from cosine_p2p.blocking import Client
from cosine_p2p.client import AsyncClient
from cosine_p2p.generation import Chunk, DrafterReport, Generation, Observer, Progress, VerifierReport
from cosine_p2p.options import ClientOptions, GenerationOptions, Prompt
from cosine_p2p.run import Run
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    PeerLost,
    PromptRefused,
    PromptTooLong,
    UsageError,
)

__all__ = [
    "AsyncClient",
    "Chunk",
    "Client",
    "ClientOptions",
    "CosineError",
    "DrafterReport",
    "Generation",
    "GenerationFailed",
    "GenerationOptions",
    "GenerationTimedOut",
    "Observer",
    "PeerLost",
    "Progress",
    "Prompt",
    "PromptRefused",
    "PromptTooLong",
    "Run",
    "UsageError",
    "VerifierReport",
    "__version__",
]
