"""Verifiers that lie, as processes beside two honest ones: found, kept as evidence, and asked last from then on."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from cosine_p2p import AsyncClient, Generation
from cosine_p2p.session.auditing import TextAccused
from cosine_p2p.session.run import Run
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import EvidenceFile
from tests.e2e.lying_verifier import LIE_AT, SILENT_AFTER
from tests.e2e.nodes import Node, close_all, own_home
from tests.e2e.reference import encoded, greedy
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]

NETWORK: Final = "liars"
PROMPT: Final = "The old lighthouse keeper opened the door and"
TOKENS: Final = 128
LATER_TOKENS: Final = 48
TRIES: Final = 12
"""One request in eight goes to a verifier that was never measured."""
SLOWER: Final = "30/3@10"
LIAR: Final = (sys.executable, "-m", "tests.e2e.lying_verifier")
LIES: Final[dict[str, dict[str, Any]]] = {"token": {}, "bits": {}, "seed": {"temperature": 1.0, "seed": 5}}


@pytest.fixture(scope="module")
def boot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A bootstrap node, with two honest verifiers that are slower than a liar."""
    folder = tmp_path_factory.mktemp("honest")
    with own_home(folder / "home"):
        nodes = [Node.start("boot", ("bootstrap", "--network", NETWORK), folder)]
        try:
            nodes[0].wait_ready()
            for name in ("first", "second"):
                nodes.append(Node.start(name, (*joined(nodes[0]), "--emulate", SLOWER), folder))
            for node in nodes[1:]:
                node.wait_ready()
            yield nodes[0]
        finally:
            close_all(nodes)


def joined(boot: Node) -> tuple[str, ...]:
    place = ("--network", NETWORK, "--initial-peers", boot.maddr)
    return "join", "--role", "verifier", "--model", "zoo:target", "--dtype", "float32", "--threads", "1", *place


@contextmanager
def liar(boot: Node, folder: Path, lie: str) -> Iterator[Node]:
    node = Node.start("liar", joined(boot), folder, command=LIAR, COSINE_TEST_LIE=lie)
    try:
        yield node.wait_ready()
    finally:
        node.close()


def client_of(boot: Node, file: Path) -> AsyncClient:
    evidence = EvidenceFile(file)
    return AsyncClient([boot.maddr], network=NETWORK, dtype="float32", audit=1.0, evidence_file=evidence)


async def of_liar(client: AsyncClient, node: Node, **options: Any) -> tuple[Run, TextAccused | None]:
    """A request that the liar serves, once it has been measured; with the error that its text ended with."""
    await client.generate(PROMPT, max_new_tokens=LIE_AT // 2, audit=0.0, verifier=node.peer_id)
    for _ in range(TRIES):
        run, accused = await client.start(PROMPT, max_new_tokens=TOKENS, **options), None
        try:
            async for _ in run.chunks():
                pass
        except TextAccused as error:
            accused = error
        if node.peer_id in authors(run.result()):
            await run.audited()
            return run, accused
    raise AssertionError("the liar was never asked")


def authors(generation: Generation) -> list[str]:
    return [verifier.peer_id for verifier in generation.verifiers]


async def assert_right_without(node: Node, client: AsyncClient) -> None:
    done = await client.generate(PROMPT, max_new_tokens=LATER_TOKENS)
    assert done.token_ids == greedy(encoded(PROMPT), LATER_TOKENS) and node.peer_id not in authors(done)


@pytest.mark.parametrize("lie", soak_rest(LIES))
def test_who_lies_is_convicted_by_two_others_and_asked_last(lie: str, boot: Node, tmp_path: Path) -> None:
    async def ask(node: Node) -> None:
        file = tmp_path / "evidence.json"
        async with client_of(boot, file) as client:
            run, _ = await of_liar(client, node, **LIES[lie])
            audit = run.result().audit
            assert audit is not None and audit.state is AuditState.CONVICTED
            assert EvidenceFile(file).convicted() == {node.peer_id}
            await assert_right_without(node, client)
        # The next run of the program knows.
        async with client_of(boot, file) as client:
            await assert_right_without(node, client)

    with liar(boot, tmp_path, lie) as node:
        asyncio.run(ask(node))


# `tests/swarm/test_audits.py` plays it in every check.
@pytest.mark.soak
def test_nobody_continues_the_text_of_one_who_lies_and_falls_silent(boot: Node, tmp_path: Path) -> None:
    async def ask(node: Node) -> None:
        file = tmp_path / "evidence.json"
        async with client_of(boot, file) as client:
            run, accused = await of_liar(client, node)
            assert node.peer_id in str(accused)
            assert LIE_AT < run.result().tokens <= SILENT_AFTER + 1
            audit = run.result().audit
            assert audit is not None and audit.state is AuditState.CONVICTED
            assert EvidenceFile(file).convicted() == {node.peer_id}
            await assert_right_without(node, client)

    with liar(boot, tmp_path, "silence") as node:
        asyncio.run(ask(node))
