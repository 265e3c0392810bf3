"""`cosine serve` as a process among real nodes: OpenAI's client gets exactly the target's own text."""

import json
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from openai import APIStatusError, OpenAI

from cosine_gateway.http.server import HEADER_S
from tests.e2e.conftest import Swarm
from tests.e2e.nodes import Node
from tests.e2e.reference import PROMPT, own_text

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]

KEY: Final = "sesame"
OTHER_KEY: Final = "barley"
GREEDY: Final = 40
LONGEST: Final = [f"{number} " + "word " * 780_000 for number in range(3)]
TOKENS: Final = 24
ASKED: Final[dict[str, Any]] = {"model": "zoo:target", "prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}


@pytest.fixture(scope="module")
def gateway(swarm: Swarm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("gateway")
    command = ("serve", "--port", "0", *swarm.peers)
    with closing(Node.start("gateway", command, folder, COSINE_API_KEY=f"{KEY} {OTHER_KEY}")) as node:
        yield node.wait_ready()


@pytest.fixture(scope="module")
def client(gateway: Node) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.ready['url']}/v1", api_key=KEY, max_retries=0, timeout=60) as openai:
        yield openai


def test_a_completion_is_the_targets_own_text(client: OpenAI) -> None:
    done = client.completions.create(**ASKED)
    assert done.choices[0].text == own_text(TOKENS)
    pieces = list(client.completions.create(**ASKED, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == done.choices[0].text
    assert {piece.system_fingerprint for piece in pieces} == {done.system_fingerprint}


@pytest.mark.thorough
def test_texts_come_despite_foreign_hosts_half_headers_and_a_greedy_key(client: OpenAI, gateway: Node) -> None:
    """Forty half headers, forty requests, three of the longest prompts, and a page of another name."""
    host, port = gateway.ready["url"].removeprefix("http://").split(":")
    with ExitStack() as stack:
        for _ in range(GREEDY):
            half = stack.enter_context(socket.create_connection((host, int(port))))
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
        foreign = Request(f"{gateway.ready['url']}/v1/models", headers={"Host": "evil.example"})
        with pytest.raises(HTTPError) as refused:
            urlopen(foreign)
        assert refused.value.code == 421
        crowd = stack.enter_context(ThreadPoolExecutor(GREEDY + len(LONGEST)))
        greedy_client = client.with_options(api_key=OTHER_KEY, timeout=120)

        def ask(prompt: str) -> str:
            return str(greedy_client.completions.create(**ASKED | {"prompt": prompt}).choices[0].text)

        asked = [crowd.submit(ask, PROMPT) for _ in range(GREEDY)]
        long = [crowd.submit(ask, text) for text in LONGEST]
        for _ in range(3):
            pieces = list(client.completions.create(**ASKED, stream=True))
            assert "".join(piece.choices[0].text for piece in pieces) == own_text(TOKENS)
        for each in long:
            with pytest.raises(APIStatusError, match=r"tokens|try again later"):
                each.result()
        refusals = [str(each.exception()) for each in asked if each.exception() is not None]
        assert len(refusals) < GREEDY and all("try again later" in refusal for refusal in refusals)
        assert {each.result() for each in asked if each.exception() is None} == {own_text(TOKENS)}
        # Closed after the time limit, perhaps with an error.
        half.settimeout(HEADER_S + 20)
        assert b" 200 " not in half.recv(100)


@pytest.mark.thorough
def test_sigterm_finishes_the_stream_and_exits_0(swarm: Swarm, tmp_path: Path) -> None:
    with closing(Node.start("gateway", ("serve", "--port", "0", *swarm.peers), tmp_path)) as node:
        node.wait_ready()
        with OpenAI(base_url=f"{node.ready['url']}/v1", api_key="none", max_retries=0) as openai:
            stream = openai.completions.create(**ASKED, stream=True)
            pieces = [next(stream).choices[0].text]
            node.process.send_signal(signal.SIGTERM)
            pieces += [piece.choices[0].text for piece in stream]
        assert "".join(pieces) == own_text(TOKENS)
        assert node.process.wait(timeout=30) == 0
        assert node.events.get(timeout=10) == {"event": "stopped"}
        lines = [json.loads(line) for line in node.log.read_text().splitlines()]
        (told,) = [line for line in lines if line["event"] == "request"]
        # The client's log names the request as the event does.
        assert {line["request"] for line in lines if "request" in line} == set(told["requests"])
        assert (told["event"], told["path"], told["status"]) == ("request", "/v1/completions", 200)
        assert told["completion_tokens"] == TOKENS
