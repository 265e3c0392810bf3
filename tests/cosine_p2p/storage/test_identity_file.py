"""The identity file: created once, private, and never replaced."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cosine_p2p.storage.identity_file import claim_identity, load_identity, share_identity
from cosine_protocol.errors import UsageError


def test_concurrent_starts_create_one_file_with_a_private_mode(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "identity"
    with ThreadPoolExecutor(8) as pool:
        identities = list(pool.map(load_identity, [file] * 16))
    assert {identity.peer_id for identity in identities} == {load_identity(file).peer_id}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["identity"]


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x12\x40" + bytes(64)])
def test_another_file_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "identity"
    file.write_bytes(content)
    with pytest.raises(UsageError, match="--identity"):
        load_identity(file)
    assert file.read_bytes() == content


def test_a_claimed_file_is_refused_to_others_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / "identity"
    claimed = claim_identity(file)
    assert claimed.identity.peer_id == load_identity(file).peer_id
    with pytest.raises(UsageError, match="in use by another node"):
        claim_identity(file)
    claimed.release()
    claim_identity(file).release()


def test_nodes_without_a_name_get_own_identities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cosine_p2p.storage.identity_file.default_identity_file", lambda: tmp_path / "identity")
    claims = [claim_identity() for _ in range(3)]
    assert [claim.file.name for claim in claims] == ["identity", "identity-2", "identity-3"]
    assert len({claim.identity.peer_id for claim in claims}) == 3
    claims[1].release()
    again = claim_identity()
    assert again.identity.peer_id == claims[1].identity.peer_id
    for claim in (claims[0], claims[2], again):
        claim.release()


def test_clients_share_a_key_and_no_node_with_them(tmp_path: Path) -> None:
    file = tmp_path / "key"
    first, second = share_identity(file), share_identity(file)
    assert first.identity.peer_id == second.identity.peer_id == load_identity(file).peer_id
    with pytest.raises(UsageError, match="in use by another node"):
        claim_identity(file)
    first.release()
    second.release()
    node = claim_identity(file)
    with pytest.raises(UsageError, match="is in use by a node; choose another key file for this client"):
        share_identity(file)
    node.release()
