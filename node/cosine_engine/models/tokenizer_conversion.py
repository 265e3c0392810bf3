"""Converts the tokenizer of a folder without tokenizer.json by transformers (docs/python.md), into a cache."""

import logging
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

from cosine_engine.processes.answer import answer_of
from cosine_p2p.request.model_config import read_config_object
from cosine_p2p.text.special_tokens import CONFIG
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles, unconverted
from cosine_p2p.text.tokenizer_sources import TIKTOKEN, TOKENIZER, TokenizerSources, installed_version
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

WORKER: Final = "cosine_engine.models.tokenizer_worker:convert"
"""The function for the child process: C++ libraries read untrusted files."""
TIMEOUT_S: Final = 600.0
"""A vocabulary of 262,144 pieces took 34 s on one core."""
OWN_CODE: Final = (
    "a tokenizer with custom code (auto_map) and no tokenizer.json: such code is never run; choose a model with a "
    "tokenizer of transformers."
)
TIKTOKEN_NAME: Final = "tiktoken.model"
"""The file name that transformers expects for tiktoken."""
SETTINGS: Final[Mapping[str, str]] = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    # tiktoken caches files by name, not by content.
    "TIKTOKEN_CACHE_DIR": "",
}
_TIKTOKEN_LINE: Final = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")


def convert_tokenizer(folder: Path) -> None:
    """Convert the tokenizer of a model's folder into the cache, if necessary. Raises `UsageError` if that fails."""
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
        raise UsageError(f"{what}: to convert it needs transformers, `pip install './node[torch]'` in the clone.")
    if missing := _missing_packages(sources):
        raise UsageError(f"{what}: to convert it, transformers needs `pip install {' '.join(missing)}`.")
    LOG.info("%s: it is converted with transformers %s", what, installed)
    try:
        files = _converted(sources)
        # Refuse files that clients cannot read.
        TextTokenizer(files.files)
        files.write(sources.folder_of(installed))
    except UsageError as error:
        if _is_code(folder):
            raise UsageError(f"{folder} has {OWN_CODE}") from None
        raise UsageError(f"{what}, and it cannot be converted: {str(error).rstrip('.')}.") from None
    except OSError as error:
        raise UsageError(f"{what}, and the converted one cannot be stored: {error}.") from None


def _is_code(folder: Path) -> bool:
    """True for a tokenizer with custom code and without tokenizer.json."""
    try:
        return bool(read_config_object(folder / CONFIG).get("auto_map")) and not (folder / TOKENIZER).is_file()
    except UsageError:
        return False


def _missing_packages(sources: TokenizerSources) -> list[str]:
    """The missing packages with which transformers reads these files, as pip names them."""
    if not sources.vocabulary.endswith((".model", TIKTOKEN)):
        return []
    needed = ("tiktoken",) if _is_tiktoken(sources) else ("sentencepiece", "protobuf")
    return [name for name in needed if not any(distributions(name=name))]


def _is_tiktoken(sources: TokenizerSources) -> bool:
    """True for a file of tiktoken, with a token in base64 and its rank on each line."""
    return _TIKTOKEN_LINE.match(sources.files[sources.vocabulary]) is not None


def _converted(sources: TokenizerSources) -> TokenizerFiles:
    """Convert the files with transformers. Raises `UsageError` and `OSError`."""
    # With a single vocabulary the order of the files does not matter.
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
    # transformers does not save the template of a processor.
    template = {name: sources.files[name] for name in ("chat_template.json",) if name in sources.files}
    return TokenizerFiles({**template, **files.files})


def _run_worker(*places: Path) -> None:
    """Run the worker with these paths. Raises `UsageError`."""
    try:
        answer_of(WORKER, *map(str, places), timeout_s=TIMEOUT_S, environment=SETTINGS)
    except TimeoutError:
        raise UsageError(f"transformers did not finish within {TIMEOUT_S:.0f} s") from None
    except ValueError:
        raise UsageError("transformers crashed") from None
