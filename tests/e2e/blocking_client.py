"""A program with a client, usually a blocking one, that ends in one of several ways.

Takes its task as JSON in its argument, and prints a JSON line for each observation.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

from cosine_p2p import AsyncClient, Client, UsageError
from cosine_p2p.transport.channel import Channel
from cosine_protocol.discover import STATUS, AskStatus, Status

PROMPT = "The old lighthouse keeper opened the door and"
ENDLESS_TOKENS = 400


def tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def generate(client: Client) -> None:
    tell(text=client.generate(PROMPT, max_new_tokens=8).text)


class CtrlC(logging.Handler):
    """Interrupts the program as soon as a request is under way."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("cosine_p2p.session.run").removeHandler(self)
        os.kill(os.getpid(), signal.SIGINT)


def interrupt_the_next_request() -> None:
    log = logging.getLogger("cosine_p2p.session.run")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.addHandler(CtrlC())


def interrupted(client: Client, call: Callable[[], object]) -> None:
    """Interrupt a call by Ctrl-C; then print the verifier's requests, and generate again."""
    interrupt_the_next_request()
    try:
        call()
    except KeyboardInterrupt:
        tell(interrupted=True)
    (verifier, *_) = client.find_verifiers()

    async def requests() -> int:
        stream = await client._client.swarm.transport.dial(verifier.peer_id, STATUS)
        async with Channel(stream, STATUS) as channel:
            while True:
                channel.post(AskStatus(1))
                status = await channel.receive()
                assert isinstance(status, Status)
                if not status.requests:
                    return status.requests

    tell(requests=client._thread.wait(client._thread.submit(requests)))
    generate(client)


def in_a_forked_child(client: Client) -> None:
    """The child prints its error and ends normally; the parent continues."""
    warnings.simplefilter("ignore", DeprecationWarning)
    generate(client)
    child = os.fork()
    if not child:
        try:
            client.generate(PROMPT)
        except UsageError as error:
            tell(error=str(error))
        client.close()
        sys.exit()
    os.waitpid(child, 0)
    generate(client)


async def interrupted_in_asyncio(**options: Any) -> None:
    interrupt_the_next_request()
    async with AsyncClient(**options) as client:
        await client.generate(PROMPT, max_new_tokens=ENDLESS_TOKENS)


def main(task: dict[str, Any]) -> None:
    options = {
        "initial_peers": task["peers"],
        "memory": False,
        "transport": task["transport"],
        "strategy": "plain",
        "dtype": "float32",
    }
    if task["do"] == "interrupt asyncio":
        try:
            asyncio.run(interrupted_in_asyncio(**options))
        except KeyboardInterrupt:
            tell(interrupted=True)
        return
    client = Client(**options)
    match task["do"]:
        case "leave a stream open":
            tell(text=next(client.stream(PROMPT, max_new_tokens=ENDLESS_TOKENS)).text)
        case "interrupt stream":
            interrupted(client, lambda: list(client.stream(PROMPT, max_new_tokens=ENDLESS_TOKENS)))
        case "fork":
            in_a_forked_child(client)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
