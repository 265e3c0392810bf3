"""The identity file of a node or client: found, read, or created once and kept."""

import os
import secrets
from pathlib import Path
from typing import Final

from platformdirs import user_data_dir

from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

_MAX_KEY_FILE_BYTES: Final = 4096


def default_identity_file() -> Path:
    """Where the identity lies unless the user names another file."""
    return Path(user_data_dir("cosine-p2p")) / "identity"


def load_identity(file: Path | None = None) -> Identity:
    """The identity in `file`, created with mode 0600 if there is none.

    Raises `UsageError` if the file cannot be read, created, or holds something else.
    """
    file = file or default_identity_file()
    data = _read(file)
    if data is None:
        return _create(file)
    try:
        return Identity.from_file_bytes(data)
    except UsageError as error:
        reason = str(error).removesuffix(".")
        raise UsageError(
            f"{file} cannot be used as an identity ({reason}); name another file with --identity."
        ) from None


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


def _create(file: Path) -> Identity:
    """Create the file without ever replacing one: of two processes that start at once, both use the first's."""
    identity = Identity.generate()
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_private(draft, identity.to_file_bytes())
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


def _write_private(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(descriptor)
