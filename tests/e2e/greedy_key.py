"""What a text of one gateway key takes beside sixteen long ones of another key: `python -m tests.e2e.greedy_key`.

A bootstrap node, a verifier and a gateway are processes. Texts of one key are timed in turn, first
alone, then while another key has sixteen texts of 900 tokens written without a pause.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.e2e.conftest import swarm_in
from tests.e2e.nodes import Node

GREEDY_KEY: Final = "barley"
MODEST_KEY: Final = "sesame"
PROMPT: Final = "The old lighthouse keeper opened the door and"
LONG_TEXTS: Final = 16
LONG_TOKENS: Final = 900
TOKENS: Final = 24
SETTLE_S: Final = 10.0
"""So long the long texts are written before others are timed."""


def text_of(url: str, key: str, tokens: int) -> str:
    """A completion, greedily."""
    body = {"model": "cosine", "prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode(), headers), timeout=300) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def seconds_of(url: str, texts: int) -> list[float]:
    """The seconds that each of so many texts of the modest key takes. All are the same text."""
    seconds, written = [], set()
    for _ in range(texts):
        began_s = time.perf_counter()
        written.add(text_of(url, MODEST_KEY, TOKENS))
        seconds.append(time.perf_counter() - began_s)
    assert len(written) == 1
    return seconds


def measured(url: str, *, texts: int) -> tuple[Sequence[float], Sequence[float]]:
    """The seconds of texts alone, and beside a greedy key."""
    seconds_of(url, 3)
    quiet = seconds_of(url, texts)
    is_over = threading.Event()

    def keep_asking() -> None:
        while not is_over.is_set():
            try:
                text_of(url, GREEDY_KEY, LONG_TOKENS)
            except HTTPError:
                is_over.wait(0.5)

    with ThreadPoolExecutor(LONG_TEXTS) as crowd:
        for _ in range(LONG_TEXTS):
            crowd.submit(keep_asking)
        time.sleep(SETTLE_S)
        try:
            beside = seconds_of(url, texts)
        finally:
            is_over.set()
    return quiet, beside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--emulate", metavar="PROFILE", help="passes as long as a device's")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("DATA", "CACHE", "CONFIG", "STATE"):
            os.environ[f"XDG_{kind}_HOME"] = str(Path(folder, kind.lower()))
        os.environ["HF_HUB_OFFLINE"] = "1"
        with swarm_in(Path(folder), drafters=(), emulated=asked.emulate) as swarm:
            keys = f"{GREEDY_KEY} {MODEST_KEY}"
            gateway = Node.start(
                "gateway", ("serve", "--port", "0", *swarm.peers), swarm.folder, COSINE_API_KEY=keys
            )
            try:
                quiet, beside = measured(gateway.wait_ready().ready["url"], texts=asked.texts)
            finally:
                gateway.close()
    row = {
        name: {"median_s": round(median(seconds), 2), "most_s": round(max(seconds), 2)}
        for name, seconds in (("quiet", quiet), ("beside", beside))
    }
    sys.stdout.write(json.dumps(row | {"ratio": round(median(beside) / median(quiet), 2)}) + "\n")


if __name__ == "__main__":
    main()
