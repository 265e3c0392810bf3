"""A verifier whose machine gets another address while it serves, in network namespaces: see `test_hardships`.

Two networks are joined by a cable. In one are a bootstrap node, a verifier and the client, in the other a verifier
whose address is taken away and replaced during a text.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cosine_p2p import AsyncClient
from cosine_protocol.errors import CosineError
from tests.e2e.nodes import COMMAND, Node, close_all
from tests.e2e.reference import encoded, greedy

PROMPT: Final = "The old lighthouse keeper opened the door and"
NEW_TOKENS: Final = 64
MOVE_AFTER_TOKENS: Final = 8
HOME: Final = "10.77.0.1"
BEFORE: Final = "10.77.0.2"
AFTER: Final = "10.77.0.3"
FAST: Final = "60/6@10"
SLOW: Final = "90/6@10"
PATIENCE_S: Final = 150.0


def ip(*arguments: str, inside: tuple[str, ...] = ()) -> None:
    subprocess.run((*inside, "ip", *arguments), check=True)


@contextmanager
def second_network() -> Iterator[tuple[str, ...]]:
    """Another network at the end of a cable; yields how a command begins that runs there."""
    with subprocess.Popen(("unshare", "--net", "sleep", "infinity")) as holder:
        try:
            inside = ("nsenter", "--net", "--target", str(holder.pid))
            own = Path("/proc/self/ns/net").readlink()
            while Path(f"/proc/{holder.pid}/ns/net").readlink() == own:
                time.sleep(0.01)
            ip("link", "set", "lo", "up")
            ip("link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(holder.pid))
            ip("address", "add", f"{HOME}/24", "dev", "here")
            ip("link", "set", "here", "up")
            ip("link", "set", "lo", "up", inside=inside)
            ip("address", "add", f"{BEFORE}/24", "dev", "there", inside=inside)
            ip("link", "set", "there", "up", inside=inside)
            yield inside
        finally:
            holder.kill()


def move(inside: tuple[str, ...]) -> None:
    ip("address", "delete", f"{BEFORE}/24", "dev", "there", inside=inside)
    ip("address", "add", f"{AFTER}/24", "dev", "there", inside=inside)


async def text_while_it_moves(boot: Node, inside: tuple[str, ...], nodes: dict[str, Node]) -> dict[str, object]:
    """The text of a request whose verifier moves: another one goes on."""
    tokens, moved_s, last_s, silence_s = 0, 0.0, 0.0, 0.0
    async with AsyncClient([boot.maddr], memory=False, dtype="float32", audit=0) as client:
        run = await client.start(PROMPT, strategy="plain", max_new_tokens=NEW_TOKENS)
        async for chunk in run.chunks():
            tokens += len(chunk.token_ids)
            now_s = time.monotonic()
            silence_s, last_s = max(silence_s, now_s - last_s if moved_s else 0.0), now_s
            if tokens >= MOVE_AFTER_TOKENS and not moved_s:
                move(inside)
                moved_s = last_s = time.monotonic()
    done = run.result()
    assert done.token_ids == greedy(encoded(PROMPT), NEW_TOKENS)
    assert [one.peer_id for one in done.verifiers] == [nodes["moving"].peer_id, nodes["staying"].peer_id]
    return {"silence_s": round(silence_s, 1)}


async def found_again(boot: Node, moved: Node, since_s: float) -> dict[str, object]:
    """How long it takes until newcomers are served by the verifier that has moved."""
    errors: list[str] = []
    while time.monotonic() < since_s + PATIENCE_S:
        try:
            async with AsyncClient(
                [boot.maddr], memory=False, dtype="float32", audit=0, trust=[moved.peer_id]
            ) as client:
                done = await client.generate(PROMPT, strategy="plain", max_new_tokens=8)
        except CosineError as error:
            errors.append(f"{time.monotonic() - since_s:.1f} s: {error}")
            await asyncio.sleep(1.0)
            continue
        assert done.token_ids == greedy(encoded(PROMPT), 8)
        return {"found_s": round(time.monotonic() - since_s, 1), "tried": len(errors) + 1}
    raise AssertionError(f"it was not found again: {errors} {moved.log.read_text()}")


def play(folder: Path) -> None:
    nodes: dict[str, Node] = {}
    with second_network() as inside:
        try:
            boot = nodes["boot"] = Node.start("boot", ("bootstrap",), folder, host=f"/ip4/{HOME}/tcp/0")
            boot.wait_ready()
            join = ("join", "--role", "verifier", "--model", "zoo:target", "--threads", "1", "--dtype", "float32")
            peers = ("--initial-peers", boot.maddr)
            nodes["staying"] = Node.start(
                "staying", (*join, "--emulate", SLOW, *peers), folder, host=f"/ip4/{HOME}/tcp/0"
            )
            nodes["moving"] = Node.start(
                "moving",
                (*join, "--emulate", FAST, *peers),
                folder,
                command=(*inside, *COMMAND),
                host="/ip4/0.0.0.0/tcp/0",
            )
            greedy(encoded(PROMPT), NEW_TOKENS)
            for name in ("staying", "moving"):
                nodes[name].wait_ready()
            found = asyncio.run(text_while_it_moves(boot, inside, nodes))
            found |= asyncio.run(found_again(boot, nodes["moving"], time.monotonic()))
            sys.stdout.write(json.dumps(found) + "\n")
        finally:
            close_all(list(nodes.values()))


def main() -> None:
    folder = Path(sys.argv[1])
    for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
        os.environ[f"XDG_{kind}_HOME"] = str(folder / kind.lower())
    play(folder)


if __name__ == "__main__":
    main()
