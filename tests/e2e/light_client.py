"""A light client in a process of its own, where hivemind and torch are not to be found.

Takes what to do as JSON in its argument and prints a JSON line for each chunk, then one for the result.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from contextlib import aclosing
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

HIDDEN = frozenset({"torch", "transformers", "hivemind"})


class Hiding(PathFinder):
    """Finds what an installation without extras has."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding

from cosine_p2p import AsyncClient  # noqa: E402
from cosine_p2p.transport.channel import Channel  # noqa: E402
from cosine_protocol import messages as m  # noqa: E402
from cosine_protocol.errors import CosineError  # noqa: E402
from cosine_protocol.protocols import STATUS  # noqa: E402


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def generate(client: AsyncClient, prompt: str, options: dict[str, Any]) -> None:
    run = await client.start(prompt, **options)
    async for chunk in run.chunks():
        tell(text=chunk.text)
    done = run.result()
    transport = type(client._joined().swarm.transport).__name__
    verifiers = [report.peer_id for report in done.verifiers]
    tell(text=done.text, token_ids=done.token_ids, drafted=done.drafted, verifiers=verifiers, transport=transport)


async def give_up(client: AsyncClient, prompt: str, options: dict[str, Any]) -> None:
    """Leave a stream after its first chunk; then say how many requests the verifier still has."""
    async with aclosing(client.stream(prompt, **options)) as chunks:
        async for _ in chunks:
            break
    (verifier, *_) = await client.find_verifiers()
    stream = await client._joined().swarm.transport.dial(verifier.peer_id, STATUS)
    async with Channel(stream, STATUS) as channel:
        requests = -1
        while requests:
            channel.post(m.AskStatus(1))
            status = await channel.receive()
            assert isinstance(status, m.Status)
            requests = status.requests
            await asyncio.sleep(0.05)
    tell(requests=requests)


async def main(task: dict[str, Any]) -> None:
    work = {"generate": generate, "give up": give_up}[task["do"]]
    try:
        async with AsyncClient(task["peers"], memory=False, network=task["network"], dtype="float32") as client:
            await work(client, task["prompt"], task["options"])
    except CosineError as error:
        tell(error=str(error), kind=type(error).__name__)
    others = [thread.name for thread in threading.enumerate() if thread.name == "cosine-libp2p"]
    tell(threads=others, modules=sorted(HIDDEN & sys.modules.keys()))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
