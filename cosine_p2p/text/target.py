"""The identity of a model: the digests of its folder, and the digest a name stands for on this machine."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from platformdirs import user_data_dir

from cosine_p2p.gguf.header import SUFFIX as GGUF_SUFFIX
from cosine_p2p.gguf.header import read_header
from cosine_p2p.gguf.tokenizer import tokenizer_files
from cosine_p2p.request.generation_config import read_eos, read_generation_config
from cosine_p2p.storage.state_file import replace_text
from cosine_p2p.text.gguf_folder import GGUF_LINK, unfold
from cosine_p2p.text.special_tokens import tokenizer_eos
from cosine_p2p.text.tensor_hashes import HashCache, gguf_digest, listing
from cosine_p2p.text.tokenizer_files import TokenizerFiles, counted_digest, names_in, parse_digest
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_EOS_TOKENS
from cosine_protocol.records import TargetFacts

LOG = logging.getLogger(__name__)

KNOWN_TARGETS: Final[Mapping[str, bytes]] = MappingProxyType(
    {
        "zoo:target": bytes.fromhex("2ac1e884f445d6cc8a91fc5079b734efb3f1666fc4883e3b0ef60a108da940aa"),
        "zoo:smol-target": bytes.fromhex("df57ac09180467b512b5f6357b8db62542b14e870f471a11e7f00ed8dccc5611"),
    }
)
"""The targets of the families at hand, so that nobody can stand for them under their names."""
QUORUM: Final = 2 / 3
"""Of the verifiers of a name that was never used here; one liar among three changes nothing."""


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """A model by content. `tokenizer_digest` is None for a folder without a tokenizer."""

    name: str
    content_digest: bytes
    tokenizer_digest: bytes | None


def identify_target(folder: Path, *, name: str, cache_folder: Path | None = None) -> TargetIdentity:
    """Digest a GGUF file, or a model folder as `save_pretrained` writes it (config.json and *.safetensors).

    The content digest is a SHA-256 over config, tokenizer files, chat template and the sorted list of (name,
    dtype, shape, SHA-256 of the raw bytes) of all tensors as stored, so that sharding does not matter. Tensor
    hashes are cached by path, size and mtime. That of a GGUF file is `gguf_digest`; it has no tokenizer digest.
    Raises `UsageError` if there is no such model.
    """
    if folder.suffix == GGUF_SUFFIX and folder.is_file():
        return TargetIdentity(name, gguf_digest(folder, cache_folder=cache_folder), None)
    tokenizer = TokenizerFiles.read(folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights and (folder / GGUF_LINK).is_file():
        digest = gguf_digest(folder / GGUF_LINK, cache_folder=cache_folder)
        return TargetIdentity(name, digest, tokenizer.digest if tokenizer else None)
    config = folder / "config.json"
    if not config.is_file() or not weights:
        raise UsageError(f"{folder} is not a model folder: it needs config.json and *.safetensors files.")
    cache = HashCache(cache_folder)
    tensors = sorted(tensor for file in weights for tensor in cache.tensors(file))
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise UsageError(f"Several files in {folder} hold the same tensor; keep one copy of the weights.")
    parts = {name: (folder / name).read_bytes() for name in names_in(folder) if (folder / name).is_file()}
    parts["config.json"] = config.read_bytes()
    digest = counted_digest(b"cosine/target/1", [*sorted(parts.items()), ("tensors", listing(tensors))])
    return TargetIdentity(name, digest, tokenizer.digest if tokenizer else None)


def read_target_facts(folder: Path, *, name: str) -> TargetFacts | None:
    """Everything about the target in a folder that decides about texts; None if it has no tokenizer.

    Raises `UsageError` if there is no such model, or its end-of-sequence ids or generation config cannot be read.
    """
    identity = identify_target(folder, name=name)
    if identity.tokenizer_digest is None:
        return None
    return TargetFacts(
        content_digest=identity.content_digest,
        tokenizer_digest=identity.tokenizer_digest,
        eos=read_ends(folder),
        generation_defaults=read_generation_config(folder),
    )


def read_ends(folder: Path) -> tuple[int, ...]:
    """The tokens that end a text: those of `read_eos`, then the tokenizer's own EOS token.

    Both do in vLLM: chat models are published whose generation config leaves the end of a turn out. Raises
    `UsageError`.
    """
    tokenizer = TokenizerFiles.read(folder)
    ends = (*read_eos(folder), *(() if tokenizer is None else tokenizer_eos(tokenizer.files)))
    return tuple(dict.fromkeys(ends))[:MAX_EOS_TOKENS]


@dataclass(frozen=True, slots=True)
class Target:
    """A target as a user names it: under which name to look it up, its digest if known, its folder if local."""

    name: str
    digest: bytes | None = None
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> "Target":
        """A folder or a GGUF file is looked up by its digest, all else is `NAME[@DIGEST]`. Raises `UsageError`."""
        path = Path(text).expanduser()
        # Held to the end, so that all who look into the file share one reading of it.
        header = read_header(path) if path.suffix == GGUF_SUFFIX and path.is_file() else None
        if header is not None:
            path = unfold(path, tokenizer_files(path))
        if path.is_dir():
            facts = read_target_facts(path, name=text)
            if facts is None:
                raise UsageError(f"{path} holds no tokenizer; name the target as its verifiers announce it.")
            return cls(facts.digest().hex(), facts.digest(), path)
        name, known = parse_target(text)
        return cls(name, known)


def parse_target(text: str) -> tuple[str, bytes | None]:
    """Split `NAME[@DIGEST]`. Raises `UsageError` for something after the @ that is no digest in hex."""
    name, at, digest = text.rpartition("@")
    if not at:
        return text, None
    try:
        return name, parse_digest(digest)
    except ValueError:
        raise UsageError(f"{text!r}: what follows the @ must be a target digest of 64 hex digits.") from None


def choose_digest(name: str, offered: Mapping[bytes, int], pins_file: Path | None = None) -> bytes:
    """The digest that `name` stands for among those that the network offers, by so many verifiers each.

    That is, in this order: the one of `KNOWN_TARGETS`, the one that was pinned when the name was first used, and
    the one that at least `QUORUM` of the verifiers name, which is pinned from then on. Raises `UsageError` if none
    of the offered is.
    """
    known = KNOWN_TARGETS.get(name)
    if known is not None:
        if known in offered:
            return known
        raise UsageError(
            f"{name} is {known.hex()} in this version, and here it stands for {_listed(offered)}; choose one as "
            f"{name}@DIGEST."
        )
    file = pins_file or Path(user_data_dir("cosine-p2p")) / "target-pins.json"
    stored = _read_json(file) if file.exists() else {}
    try:
        pins = {str(name): parse_digest(digest) for name, digest in stored.items()}
    except (AttributeError, TypeError, ValueError):
        raise UsageError(f"{file} is damaged; repair or remove it.") from None
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


def _listed(digests: Iterable[bytes]) -> str:
    return ", ".join(digest.hex() for digest in sorted(digests)) or "nothing"


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
