"""The identity file of a node or client, which is created once and kept."""

import os
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from platformdirs import user_data_dir

from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

_MAX_KEY_FILE_BYTES: Final = 4096  # Bounds the read of a wrong file: a key has 68 bytes.
MAX_DEFAULT_IDENTITIES: Final = 256  # Bounds the search: the number of nodes of one user on a machine.


def default_identity_file() -> Path:
    return Path(user_data_dir("cosine-p2p")) / "identity"


def load_identity(file: Path | None = None, *, new: Identity | None = None) -> Identity:
    """Load the identity in `file`. If missing it is created with mode 0600 and a new key or `new`.

    Raises `UsageError`.
    """
    file = file or default_identity_file()
    data = _read(file)
    if data is None:
        return _create(file, new or Identity.generate())
    try:
        return Identity.from_file_bytes(data)
    except UsageError as error:
        reason = str(error).removesuffix(".")
        raise UsageError(
            f"{file} cannot be used as an identity ({reason}); name another file with --identity."
        ) from None


@dataclass(frozen=True, slots=True)
class ClaimedIdentity:
    """An identity that no other process of this machine uses until this process ends or calls `release`."""

    file: Path
    identity: Identity
    lock: IO[bytes]

    def release(self) -> None:
        self.lock.close()


def claim_identity(file: Path | None = None) -> ClaimedIdentity:
    """Claim the identity in `file`, or the first free default one (`identity`, `identity-2`, ...).

    Two nodes with one peer id would take over each other's connections. Raises `UsageError` if `file` is in use, or
    as `load_identity`.
    """
    if file is not None:
        claimed = _try_claim(file)
        if claimed is None:
            raise UsageError(f"{file} is in use by another node; choose another key file with --identity.")
        return claimed
    first = default_identity_file()
    names = [first, *(first.with_name(f"{first.name}-{n}") for n in range(2, MAX_DEFAULT_IDENTITIES + 1))]
    for candidate in names:
        if (claimed := _try_claim(candidate)) is not None:
            return claimed
    raise UsageError(
        f"All {MAX_DEFAULT_IDENTITIES} default identities are in use; name a key file with --identity."
    )


def share_identity(file: Path | None = None) -> ClaimedIdentity:
    """Claim the identity in `file` or the first default one for a client; other clients may use it too.

    Raises `UsageError` if a node uses it, for which peers would take the client, or as `load_identity`.
    """
    file = file or default_identity_file()
    shared = _try_claim(file, is_shared=True)
    if shared is None:
        raise UsageError(
            f"{file} is in use by a node; choose another key file for this client with --identity, and have its "
            "peer id admitted."
        )
    return shared


def _try_claim(file: Path, *, is_shared: bool = False) -> ClaimedIdentity | None:
    """Lock and load a key file; None if another process holds it."""
    identity = load_identity(file)
    lock = file.open("rb")
    if find_spec("fcntl") is None:
        # Windows, where only clients run.
        return ClaimedIdentity(file, identity, lock)
    import fcntl

    try:
        fcntl.flock(lock, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return ClaimedIdentity(file, identity, lock)


def _read(file: Path) -> bytes | None:
    try:
        with file.open("rb") as handle:
            return handle.read(_MAX_KEY_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(
            f"The identity file {file} cannot be read ({error.strerror}); fix its permissions or name another "
            "file with --identity."
        ) from None


def _create(file: Path, identity: Identity) -> Identity:
    """Create the file without replacing one: two processes that start at once use the same identity."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(identity.to_file_bytes())
            handle.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            return load_identity(file)
        finally:
            draft.unlink()
    except OSError as error:
        raise UsageError(
            f"The identity file {file} cannot be created ({error.strerror}); name a writable place with --identity."
        ) from None
    return identity
