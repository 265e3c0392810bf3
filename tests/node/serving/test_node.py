"""Several nodes in one process: separate identities, all loaded before any is announced, a common end."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from cosine_engine.load_options import LoadOptions
from cosine_engine.models.engine_kind import NGRAM
from cosine_engine.models.served import ModelSource
from cosine_node.serving.draft_role import run_drafters
from cosine_node.serving.node import together
from cosine_node.serving.options import DraftOptions, NetworkOptions
from cosine_p2p.access import Access
from cosine_p2p.dht.postings import RecordOpener
from cosine_p2p.storage.identity_file import claim_identity
from cosine_p2p.transport.config import TransportConfig
from cosine_p2p.transport.full.hivemind import HivemindTransport
from cosine_protocol.errors import UsageError
from tests.scenes import in_virtual_time


def drafter(model: str) -> DraftOptions:
    engine = LoadOptions(device="cpu", dtype="float32", threads=1)
    return DraftOptions(source=ModelSource(model=model, target="zoo:target", engine=engine), max_requests=1)


class Started(Exception):
    """A transport would have been started."""


def run_until_started(options: Sequence[DraftOptions], key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(config: TransportConfig) -> None:
        raise Started(config.identity_file)

    monkeypatch.setattr(HivemindTransport, "start", start)
    network = NetworkOptions(access=Access(network="test"), identity_file=key)
    asyncio.run(run_drafters(network, options, lambda event, fields: None, asyncio.Event()))


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_model_that_cannot_be_loaded_names_itself_before_any_node_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    with pytest.raises(UsageError, match="/no/such/model cannot be served: "):
        run_until_started([drafter(NGRAM), drafter("/no/such/model")], key, monkeypatch)
    with pytest.raises(UsageError, match=r"\A(?!.*cannot be served)"):
        run_until_started([drafter("/no/such/model")], key, monkeypatch)
    # The identities are released.
    for file in (key, tmp_path / "key-2"):
        claim_identity(file).release()


def test_each_node_claims_an_identity_as_long_as_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    key = tmp_path / "key"
    claimed = claim_identity(tmp_path / "key-2")
    with pytest.raises(UsageError, match="key-2 is in use by another node"):
        run_until_started([drafter(NGRAM), drafter(NGRAM)], key, monkeypatch)
    claimed.release()
    with pytest.raises(Started, match=str(key)):
        run_until_started([drafter(NGRAM), drafter(NGRAM)], key, monkeypatch)


class FirstTransport:
    """A transport with the parts that the first node of a process needs before it serves."""

    peer_id = "12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
    opener = RecordOpener()
    config = TransportConfig(identity_file=Path())

    def note_addresses(self, peer_id: str, maddrs: Sequence[str]) -> None:
        return

    async def visible_maddrs(self) -> tuple[str, ...]:
        return ("/ip4/127.0.0.1/tcp/4001/p2p/first",)

    async def close(self) -> None:
        return


@pytest.mark.parametrize("given", [(), ("/ip4/127.0.0.1/tcp/4001/p2p/other",)])
def test_nodes_that_are_given_no_peers_begin_one_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...]
) -> None:
    asked: list[tuple[str, ...]] = []

    async def start(config: TransportConfig) -> FirstTransport:
        asked.append(config.initial_peers)
        if len(asked) > 1:
            raise Started
        return FirstTransport()

    monkeypatch.setattr(HivemindTransport, "start", start)
    access = Access(network="test")
    network = NetworkOptions(access=access, identity_file=tmp_path / "key", initial_peers=given)
    with pytest.raises(Started):
        asyncio.run(run_drafters(network, [drafter(NGRAM)] * 2, lambda event, fields: None, asyncio.Event()))
    assert asked == [given, given or ("/ip4/127.0.0.1/tcp/4001/p2p/first",)]


@in_virtual_time
async def test_the_first_error_is_raised_after_the_others_drain() -> None:
    drained: list[str] = []

    async def fail(text: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        raise UsageError(text)

    async def drain(stop: asyncio.Event) -> None:
        await stop.wait()
        await asyncio.sleep(2)
        drained.append("all")

    stop = asyncio.Event()
    with pytest.raises(UsageError, match="early"):
        await together([fail("late", 2), drain(stop), fail("early", 1)], stop)
    assert drained == ["all"]
