"""The founder's side of a private swarm: a folder with its key and a ledger of what it has signed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.storage.state_file import replace_text
from cosine_protocol.errors import BadSignature, UsageError
from cosine_protocol.identity import Identity, public_key_of
from cosine_protocol.membership import (
    CERTIFICATE_LINE,
    MAX_CERTIFICATE_S,
    MAX_REVOKED,
    MAX_SWARM_NAME_BYTES,
    REVOCATIONS_LINE,
    as_line,
    read_certificate,
    sign_certificate,
    sign_revocations,
)

KEY_FILE: Final = "swarm.key"
LEDGER_FILE: Final = "ledger.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEntry:
    """A member's latest certificate: serial number and end. All serials up to `revoked` are revoked."""

    serial: int
    ends_at_s: float
    revoked: int = 0

    @property
    def is_revoked(self) -> bool:
        return self.serial <= self.revoked


class FoundedSwarm:
    """A swarm in a founder's folder. Created by `create` or `open`. Times are Unix seconds."""

    def __init__(self, folder: Path, identity: Identity, ledger: Mapping[str, Any]) -> None:
        self.folder = folder
        self.name = str(ledger["name"])
        self.sequence = int(ledger["sequence"])
        self.members = {peer_id: MemberEntry(**kept) for peer_id, kept in ledger["members"].items()}
        self._identity = identity
        self._serial = int(ledger["serial"])

    @classmethod
    def create(cls, folder: Path, name: str) -> "FoundedSwarm":
        """Create a swarm with a new private key. Raises `UsageError`."""
        if not name or not name.isprintable() or len(name.encode()) > MAX_SWARM_NAME_BYTES:
            raise UsageError(f"The name of a swarm is 1 to {MAX_SWARM_NAME_BYTES} printable characters.")
        if (folder / KEY_FILE).exists():
            raise UsageError(f"{folder} holds a swarm already; name another folder with --out.")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be made ({error.strerror}); name another one with --out.") from None
        identity = load_identity(folder / KEY_FILE)
        swarm = cls(folder, identity, {"name": name, "sequence": 0, "serial": 0, "members": {}})
        swarm._write()
        return swarm

    @classmethod
    def open(cls, folder: Path) -> "FoundedSwarm":
        """Load the swarm in a folder. Raises `UsageError`."""
        if not (folder / KEY_FILE).is_file():
            raise UsageError(
                f"{folder} holds no swarm; make one with `cosine-node swarm create NAME --out {folder}`."
            )
        identity = load_identity(folder / KEY_FILE)
        try:
            return cls(folder, identity, json.loads((folder / LEDGER_FILE).read_text("utf-8")))
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise UsageError(
                f"{folder / LEDGER_FILE}, the list of the swarm's members, is missing or broken."
            ) from None

    @property
    def swarm_id(self) -> str:
        return self._identity.peer_id

    def admit(self, peer_id: str, *, lifetime_s: float, now_s: float) -> str:
        """Sign a certificate for a peer, as a line of text. Raises `UsageError` for an invalid peer id."""
        try:
            public_key_of(peer_id)
        except BadSignature as error:
            raise UsageError(f"{error}; `cosine-node identity` shows a peer's own.") from None
        # Above all earlier serials, even if the folder was restored from an old copy.
        self._serial = max(self._serial + 1, int(now_s))
        data = sign_certificate(
            self._identity,
            name=self.name,
            member=peer_id,
            serial=self._serial,
            starts_at_s=now_s,
            lifetime_s=lifetime_s,
        )
        revoked = self.members[peer_id].revoked if peer_id in self.members else 0
        ends_at_s = read_certificate(data).ends_at_s
        self.members[peer_id] = MemberEntry(serial=self._serial, ends_at_s=ends_at_s, revoked=revoked)
        self._write()
        return as_line(data, prefix=CERTIFICATE_LINE)

    def revoke(self, peer_id: str, *, now_s: float) -> str:
        """Sign a new list of revoked certificates, as a line of text.

        Raises `UsageError` for a peer without a certificate, or for a full list.
        """
        known = self.members.get(peer_id)
        if known is None:
            raise UsageError(f"{peer_id} has no certificate of the swarm {self.name}.")
        self.members[peer_id] = replace(known, revoked=self._serial)
        # This long after the latest certificate of a revoked member all its certificates have ended.
        self.members = {
            peer_id: one
            for peer_id, one in self.members.items()
            if not (one.is_revoked and now_s > one.ends_at_s + MAX_CERTIFICATE_S)
        }
        if sum(one.revoked > 0 for one in self.members.values()) > MAX_REVOKED:
            raise UsageError(f"A swarm has at most {MAX_REVOKED} revoked members; others end by themselves.")
        self.sequence = max(self.sequence + 1, int(now_s))
        self._write()
        serials = {peer_id: one.revoked for peer_id, one in self.members.items() if one.revoked}
        data = sign_revocations(self._identity, sequence=self.sequence, serials=serials)
        return as_line(data, prefix=REVOCATIONS_LINE)

    def _write(self) -> None:
        """Write the ledger, before anyone gets what was signed. Raises `OSError`."""
        ledger = {
            "name": self.name,
            "sequence": self.sequence,
            "serial": self._serial,
            "members": {peer_id: asdict(one) for peer_id, one in self.members.items()},
        }
        replace_text(self.folder / LEDGER_FILE, json.dumps(ledger, indent=1) + "\n")
