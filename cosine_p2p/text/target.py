"""The identity of a model: the digests of its folder, and the digests of names on this machine."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platformdirs import user_data_dir

from cosine_p2p.gguf.header import is_gguf, read_header
from cosine_p2p.gguf.tokenizer import tokenizer_files
from cosine_p2p.request.generation_config import read_eos, read_generation_config
from cosine_p2p.request.model_defaults import KNOWN_TARGETS
from cosine_p2p.storage.bounded_file import read_json
from cosine_p2p.storage.state_file import replace_text
from cosine_p2p.text.gguf_folder import unfold
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.special_tokens import tokenizer_eos
from cosine_p2p.text.tokenizer_files import TokenizerFiles, parse_digest
from cosine_protocol.errors import UsageError
from cosine_protocol.records import ALL_TARGETS, TargetFacts
from cosine_protocol.request import MAX_EOS_TOKENS

LOG = logging.getLogger(__name__)

QUORUM: Final = 2 / 3  # Share of the verifiers of a new name; one liar among three has no effect.


def read_target_facts(folder: Path) -> TargetFacts | None:
    """Return the facts that determine a target's texts; None without a tokenizer. Raises `UsageError`."""
    tokenizer, held = TokenizerFiles.read(folder), HeldWeights.read(folder)
    if tokenizer is None:
        return None
    return TargetFacts(
        content_digest=held.content_digest,
        tokenizer_digest=tokenizer.digest,
        eos=read_ends(folder),
        generation_defaults=read_generation_config(folder),
    )


def read_ends(folder: Path) -> tuple[int, ...]:
    """Return the ids of `read_eos` and the tokenizer's EOS, as in vLLM. Raises `UsageError`."""
    tokenizer = TokenizerFiles.read(folder)
    ends = (*read_eos(folder), *(() if tokenizer is None else tokenizer_eos(tokenizer.files)))
    return tuple(dict.fromkeys(ends))[:MAX_EOS_TOKENS]


@dataclass(frozen=True, slots=True)
class Target:
    """A target as a user names it: its name for look-ups, its digest if known, its folder if local."""

    name: str
    digest: bytes | None = None
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Parse a folder or GGUF file (looked up by digest) or `NAME[@DIGEST]`. Raises `UsageError`."""
        if text == ALL_TARGETS:
            return cls(ALL_TARGETS)
        path = Path(os.path.expanduser(text))
        # A reference keeps the header cached.
        header = read_header(path) if os.path.isfile(path) and is_gguf(path) else None
        if header is not None:
            path = unfold(path, tokenizer_files(path))
        if os.path.isdir(path):
            facts = read_target_facts(path)
            if facts is None:
                raise UsageError(f"{path} holds no tokenizer; name the target as its verifiers announce it.")
            return cls(facts.digest().hex(), facts.digest(), path)
        name, known = parse_target(text)
        return cls(name, known)


def is_name(text: str) -> bool:
    """Return whether `Target.parse` reads a peer's text as a name, not as a local file or with a digest."""
    return "@" not in text and not os.path.exists(os.path.expanduser(text))


def parse_target(text: str) -> tuple[str, bytes | None]:
    """Split `NAME[@DIGEST]`. Raises `UsageError` for an invalid digest."""
    name, at, digest = text.rpartition("@")
    if not at:
        return text, None
    try:
        return name, parse_digest(digest)
    except ValueError:
        raise UsageError(f"{text!r}: what follows the @ must be a target digest of 64 hex digits.") from None


def settled_digest(name: str, pins_file: Path | None = None) -> bytes | None:
    """Return the known or pinned digest of `name`; None for neither. Raises `UsageError`."""
    return KNOWN_TARGETS.get(name) or _read_pins(pins_file or _pins_file()).get(name)


def choose_digest(name: str, offered: Mapping[bytes, int], pins_file: Path | None = None) -> bytes:
    """Return the digest of `name` among those of the network, given with numbers of verifiers.

    In this order: that of `KNOWN_TARGETS`, the one pinned at the first use of the name, and the one of at least
    `QUORUM` of the verifiers, which is then pinned. Raises `UsageError` if none of these is offered.
    """
    known = KNOWN_TARGETS.get(name)
    if known is not None:
        if known in offered:
            return known
        raise UsageError(
            f"{name} is {known.hex()} in this version, and here it stands for {_listed(offered)}; choose one as "
            f"{name}@DIGEST."
        )
    file = pins_file or _pins_file()
    pins = _read_pins(file)
    pinned = pins.get(name)
    if pinned is not None:
        if pinned in offered:
            return pinned
        raise UsageError(
            f"{name} was {pinned.hex()} when it was first used, and now it is {_listed(offered)}; if that is "
            f"right, remove {name} from {file}."
        )
    chosen = max(sorted(offered), key=lambda digest: offered[digest])
    if offered[chosen] < QUORUM * sum(offered.values()):
        raise UsageError(f"{name} stands for several models here, {_listed(offered)}; choose one as {name}@DIGEST.")
    try:
        kept = {known_name: digest.hex() for known_name, digest in [*pins.items(), (name, chosen)]}
        replace_text(file, json.dumps(kept, indent=0))
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror}).") from None
    return chosen


def _pins_file() -> Path:
    return Path(user_data_dir("cosine-p2p")) / "target-pins.json"


def _read_pins(file: Path) -> dict[str, bytes]:
    if not file.exists():
        return {}
    try:
        return {str(name): parse_digest(digest) for name, digest in read_json(file).items()}
    except (OSError, AttributeError, TypeError, ValueError, RecursionError):
        raise UsageError(f"{file} is damaged; repair or remove it.") from None


def _listed(digests: Iterable[bytes]) -> str:
    return ", ".join(digest.hex() for digest in sorted(digests)) or "nothing"
