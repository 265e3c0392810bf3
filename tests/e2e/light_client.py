"""A light client in a process of its own, without hivemind and torch.

Takes its task as JSON in its argument, and prints a JSON line for each chunk, then one for the result.
"""

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

HIDDEN = frozenset({"torch", "transformers", "hivemind"})


class Hiding(PathFinder):
    """Hides the packages that an installation without extras lacks."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Hiding

from cosine_p2p import AsyncClient  # noqa: E402
from cosine_protocol.errors import CosineError  # noqa: E402


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


async def main(task: dict[str, Any]) -> None:
    try:
        async with AsyncClient(task["peers"], memory=False, dtype="float32") as client:
            await generate(client, task["prompt"], task["options"])
    except CosineError as error:
        tell(error=str(error), kind=type(error).__name__)
    others = [thread.name for thread in threading.enumerate() if thread.name == "cosine-libp2p"]
    tell(threads=others, modules=sorted(HIDDEN & sys.modules.keys()))


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
