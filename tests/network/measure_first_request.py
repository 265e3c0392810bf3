"""How long the first request of a light client takes: `python -m tests.network.measure_first_request RTT_MS ...`.

For each round-trip time between the client and all others: a client that has never been there, and the next one of
the same machine, in processes of their own. Times are from its start, its libraries loaded, to the first token.
"""

import json
import sys
from typing import Final

from cosine_lab.network.laboratory import Host
from tests.network.nodes import TARGET, Node, laboratory

ROUNDS: Final = 3
CLIENT: Final = """
import asyncio, json, sys, time
import tokenizers
import cosine_p2p.text.tokenizer, cosine_p2p.transport.light.light
from cosine_p2p.access import Access
from cosine_p2p.client import AsyncClient
from cosine_p2p.directory.known_peers import KnownPeers
from cosine_p2p.directory.known_records import KnownRecords
from cosine_p2p.network import joining

async def main():
    address, target = sys.argv[1:]
    began_s = time.monotonic()
    known = KnownRecords("measured", target, clock=time.time)
    peers = KnownPeers("measured")
    join = joining([address], access=Access(), transport="light", known_peers=peers, known_records=known)
    took_s = []
    async with AsyncClient([address], join=join, target=target, max_new_tokens=4) as client:
        joined_s = time.monotonic() - began_s
        for _ in range(2):
            async for _ in client.stream("Once upon a time"):
                if began_s is not None:
                    took_s.append(time.monotonic() - began_s)
                    began_s = None
            began_s = time.monotonic()
    print(json.dumps({"joined_s": joined_s, "first_s": took_s[0], "next_s": took_s[1]}))

asyncio.run(main())
"""


def measure(client: Host, address: str) -> str:
    told = json.loads(client.run(sys.executable, "-c", CLIENT, address, TARGET))
    return ", ".join(f"{name.removesuffix('_s')} {seconds:.2f} s" for name, seconds in told.items())


def main() -> None:
    with laboratory() as lab:
        boot = Node.start(lab.host("boot"), "bootstrap")
        address = boot.maddr
        joins = ("join", "--role", "verifier", "--model", TARGET, "--threads", "1", "--initial-peers", address)
        Node.start(lab.host("verifier"), *joins)
        for rtt_ms in map(float, sys.argv[1:] or ("100",)):
            for number in range(ROUNDS):
                client = lab.host(f"client{rtt_ms:g}-{number}")
                for other in ("boot", "verifier"):
                    lab.way(client.name, other, rtt_s=rtt_ms / 1e3)
                for kind in ("fresh", "there before"):
                    sys.stdout.write(f"RTT {rtt_ms:g} ms, {kind}: {measure(client, address)}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
