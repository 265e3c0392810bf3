"""One who asks for texts and takes the time, a process: `python -m cosine_lab.experiments.asker KIND PLACE`.

KIND is `cosine` with the address of a node, `llama` with the address of a llama.cpp server, or `transformers` with
the folder of a model. Reads one JSON request a line from stdin, and writes one JSON answer a line to stdout: the
tokens, and the seconds until each of them.
"""

import asyncio
import http.client
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final

Request = dict[str, Any]
Come = Iterator[list[int]]
"""Tokens as they come, several at a time where they come together."""
ANSWER_TIMEOUT_S: Final = 600.0


def answer(come: Come) -> dict[str, Any]:
    """The tokens of a text, and the seconds since now until each."""
    began_s = time.perf_counter()
    tokens: list[int] = []
    came_s: list[float] = []
    for some in come:
        tokens += some
        came_s += [time.perf_counter() - began_s] * len(some)
    return {"tokens": tokens, "came_s": came_s}


def serve(ask: Callable[[Request], Come]) -> None:
    """Answer until stdin ends."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(ask(json.loads(line)))) + "\n")
        sys.stdout.flush()


def ask_llama(place: str) -> Callable[[Request], Come]:
    """Ask a llama.cpp server, whose answers come as server-sent events."""

    def ask(request: Request) -> Come:
        server = http.client.HTTPConnection(place, timeout=ANSWER_TIMEOUT_S)
        wanted = {
            "prompt": request["prompt"],
            "n_predict": request["tokens"],
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
        }
        server.request("POST", "/completion", json.dumps(wanted), {"Content-Type": "application/json"})
        with server.getresponse() as events:
            while line := events.readline():
                if line.startswith(b"data: "):
                    event = json.loads(line.removeprefix(b"data: "))
                    if tokens := event.get("tokens"):
                        yield tokens
        server.close()

    return ask


def ask_transformers(place: str) -> Callable[[Request], Come]:
    """A model of transformers in this process, by one thread."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, trust_remote_code=False)

    def ask(request: Request) -> Come:
        fed, cache = torch.tensor([request["prompt"]]), None
        with torch.inference_mode():
            for _ in range(request["tokens"]):
                out = model(fed, past_key_values=cache, use_cache=True)
                cache, fed = out.past_key_values, out.logits[:, -1:].argmax(-1)
                yield [int(fed)]

    return ask


def ask_cosine(place: str) -> Callable[[Request], Come]:
    """A light client of a swarm, for as long as this process lives."""
    from cosine_p2p.client import AsyncClient

    loop = asyncio.new_event_loop()
    client = AsyncClient([place], transport="light", target=sys.argv[3], audit=0.0)
    loop.run_until_complete(client.__aenter__())

    async def come(request: Request) -> AsyncIterator[list[int]]:
        prompt, tokens = tuple(request["prompt"]), request["tokens"]
        strategy = request["strategy"]
        async for chunk in client.stream(prompt, max_new_tokens=tokens, strategy=strategy, ignore_eos=True):
            yield list(chunk.token_ids)

    def ask(request: Request) -> Come:
        texts = come(request)
        while True:
            try:
                yield loop.run_until_complete(anext(texts))
            except StopAsyncIteration:
                return

    return ask


KINDS: Final = {"cosine": ask_cosine, "llama": ask_llama, "transformers": ask_transformers}

if __name__ == "__main__":
    serve(KINDS[sys.argv[1]](sys.argv[2]))
