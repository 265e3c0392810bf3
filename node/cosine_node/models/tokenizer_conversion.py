"""Makes the tokenizer.json of a model's folder that has none: transformers does it, once for each content.

What clients get is what transformers loads (docs/python.md).
"""

import logging
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from cosine_node.processes.answer import answer_of
from cosine_p2p.request.model_config import read_config_object
from cosine_p2p.text.special_tokens import CONFIG
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles, unconverted
from cosine_p2p.text.tokenizer_sources import TIKTOKEN, TOKENIZER, TokenizerSources, installed_version
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

WORKER: Final = "cosine_node.models.tokenizer_worker:convert"
"""The function that converts, in a process of its own: files of strangers are read by libraries in C++."""
TIMEOUT_S: Final = 600.0
"""Seventeen times what 262,144 made-up pieces took on one core: 34 s."""
OWN_CODE: Final = (
    "a tokenizer that is code of its own (auto_map) and no tokenizer.json: such code is never run; choose a model "
    "whose tokenizer is one of transformers."
)
TIKTOKEN_NAME: Final = "tiktoken.model"
"""The name by which transformers knows a file of tiktoken's."""
SETTINGS: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    # tiktoken keeps copies by the name of a file, whatever is in it.
    "TIKTOKEN_CACHE_DIR": "",
}
_TIKTOKEN_LINE: Final = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")


def convert_tokenizer(folder: Path) -> None:
    """See that a model's folder has a tokenizer that clients can read, or none; what is made is kept in the cache.

    Raises `UsageError` with one sentence where it cannot be made.
    """
    sources = unconverted(folder)
    if sources is None:
        if _is_code(folder):
            raise UsageError(f"{folder} has {OWN_CODE}")
        return
    if sources.converted() is not None:
        return
    what = f"{folder} has a {sources.vocabulary} and no tokenizer.json"
    installed = installed_version()
    if installed is None:
        raise UsageError(f"{what}: to convert it needs transformers, `pip install '.[node]'` in the clone.")
    if missing := _missing_packages(sources):
        raise UsageError(f"{what}: to convert it, transformers needs `pip install {' '.join(missing)}`.")
    LOG.info("%s: it is converted with transformers %s", what, installed)
    try:
        files = _converted(sources)
        # What no client could read is not kept.
        TextTokenizer(files.files)
        files.write(sources.folder_of(installed))
    except UsageError as error:
        if _is_code(folder):
            raise UsageError(f"{folder} has {OWN_CODE}") from None
        raise UsageError(f"{what}, and it cannot be converted: {str(error).rstrip('.')}.") from None
    except OSError as error:
        raise UsageError(f"{what}, and what was made of it cannot be kept: {error}.") from None


def _is_code(folder: Path) -> bool:
    """True for a folder whose tokenizer names code of its own, and that has no tokenizer.json."""
    try:
        return bool(read_config_object(folder / CONFIG).get("auto_map")) and not (folder / TOKENIZER).is_file()
    except UsageError:
        return False


def _missing_packages(sources: TokenizerSources) -> list[str]:
    """The packages that transformers reads such files with and that are not installed, as pip names them."""
    if not sources.vocabulary.endswith((".model", TIKTOKEN)):
        return []
    needed = ("tiktoken",) if _is_tiktoken(sources) else ("sentencepiece", "protobuf")
    return [name for name in needed if not _is_installed(name)]


def _is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _is_tiktoken(sources: TokenizerSources) -> bool:
    """True for lines of a token in base64 and its rank; SentencePiece's files are protocol buffers."""
    return _TIKTOKEN_LINE.match(sources.files[sources.vocabulary]) is not None


def _converted(sources: TokenizerSources) -> TokenizerFiles:
    """What transformers makes of the files. Raises `UsageError` and `OSError`."""
    # One vocabulary alone, so that the order in which a folder is listed decides nothing.
    others = {"tokenizer.model", TIKTOKEN_NAME, "tekken.json"} - {sources.vocabulary}
    with tempfile.TemporaryDirectory() as place:
        model, made = Path(place, "model"), Path(place, "made")
        for name, content in sources.files.items():
            if content and name not in others:
                file = model / (TIKTOKEN_NAME if name.endswith(TIKTOKEN) else name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        is_pieces = sources.vocabulary.endswith(".model") and not _is_tiktoken(sources)
        _run_worker(model, made, *([model / sources.vocabulary] if is_pieces else []))
        files = TokenizerFiles.stored(made)
    # A template of the processor is none of the tokenizer's, and its file stays what it was.
    template = {name: sources.files[name] for name in ("chat_template.json",) if name in sources.files}
    return TokenizerFiles({**template, **files.files})


def _run_worker(*places: Path) -> None:
    """Let the worker read and write where it is told. Raises `UsageError`."""
    try:
        answer_of(WORKER, *map(str, places), timeout_s=TIMEOUT_S, environment=SETTINGS)
    except TimeoutError:
        raise UsageError(f"transformers did not end within {TIMEOUT_S:.0f} s") from None
    except ValueError:
        raise UsageError("transformers stopped at it") from None
