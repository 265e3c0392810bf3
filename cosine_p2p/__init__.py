"""The client library of CoSine P2P: text from a swarm, exactly the target model's.

from cosine_p2p import Client

with Client(initial_peers=[...], target="zoo:target") as client:
    print(client.generate("Once upon a time", max_new_tokens=64).text)
"""

from cosine_p2p.blocking import Client
from cosine_p2p.client import AsyncClient
from cosine_p2p.generation import Chunk, DrafterReport, Generation, VerifierReport

__all__ = ["AsyncClient", "Chunk", "Client", "DrafterReport", "Generation", "VerifierReport"]
