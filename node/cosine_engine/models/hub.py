"""Models of the Hugging Face hub. Imports its library lazily.

Requests have timeouts. If the hub does not answer, an earlier download is used.
"""

import json
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from cosine_engine.models.hub_source import WHOLE
from cosine_engine.models.partial_folder import INDEX
from cosine_engine.zoo.family import HUB_FILE
from cosine_p2p.gguf.header import SUFFIX as GGUF_SUFFIX
from cosine_p2p.gguf.header import part_names
from cosine_p2p.request.model_config import FILE_NAME as CONFIG_FILE
from cosine_p2p.text.tokenizer_files import ADDITIONAL_TEMPLATES, NAMES
from cosine_p2p.text.tokenizer_sources import OTHER_NAMES, TIKTOKEN
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

LOG = logging.getLogger(__name__)
FETCHED: Final = ("*.json", "*.safetensors", *OTHER_NAMES, f"*{TIKTOKEN}", *NAMES, f"{ADDITIONAL_TEMPLATES}*")
HUB_ANSWER_S: Final = 6.0
"""Timeout of the first answer, name resolution included, if the model is downloaded already."""
PATIENT_S: Final = 30.0
"""Timeout of the first answer otherwise."""
STEP_S: Final = 5.0
"""Timeout of connecting and reading where the hub's library sets none; it tries six times."""


class HubRefusal(UsageError):
    """The hub does not have a model or does not answer. `reason` is the message of its library."""

    def __init__(self, sentence: str, reason: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository, or a GGUF file in it. `file` is its first part."""

    name: str
    repository: str
    file: str = ""

    @classmethod
    def parse(cls, name: str) -> "HubModel":
        """Parse OWNER/REPOSITORY or hf:OWNER/REPOSITORY/FILE.gguf. Raises `UsageError`."""
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils._validators import validate_repo_id

        owner, _, rest = name.removeprefix(HUB_FILE).partition("/")
        repository, _, file = rest.partition("/")
        is_file = name.startswith(HUB_FILE)
        if is_file and not file.endswith(GGUF_SUFFIX):
            raise UsageError(
                f"{name!r} names no file of a repository: write {HUB_FILE}OWNER/REPOSITORY/FILE{GGUF_SUFFIX}."
            )
        found = cls(name, f"{owner}/{repository}", file) if is_file else cls(name, name)
        try:
            validate_repo_id(found.repository)
        except HFValidationError:
            raise UsageError(f"{name!r} is not a folder, GGUF file, zoo:NAME or Hugging Face id.") from None
        return found

    def held(self) -> Path | None:
        """The newest complete download: a folder or file. Sends no request."""
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        place = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=self.repository, repo_type="model")
        newest = ""
        with suppress(OSError, ValueError):
            newest = (place / "refs" / "main").read_text(encoding="utf-8")
        folders = [folder for folder in place.glob("snapshots/*") if folder.is_dir()]
        folders.sort(key=lambda folder: (folder.name == newest, folder.stat().st_mtime), reverse=True)
        return next((folder / self.file for folder in folders if self._is_whole(folder)), None)

    def ask(self, within_s: float, *, files_metadata: bool = False) -> "ModelInfo":
        """The hub's information about the repository. Blocks for at most `within_s`. Raises `HubRefusal`."""
        from huggingface_hub import HfApi

        answer: Future[ModelInfo] = Future()

        def ask() -> None:
            try:
                _bound_all_calls()
                answer.set_result(
                    HfApi().model_info(self.repository, timeout=within_s, files_metadata=files_metadata)
                )
            except BaseException as error:
                answer.set_exception(error)

        with self._told():
            # In a thread: name resolution has no timeout.
            Thread(target=ask, name="hub", daemon=True).start()
            try:
                return answer.result(within_s)
            except TimeoutError:
                raise TimeoutError(f"no answer within {within_s:g} s") from None

    def fetch(self) -> Path:
        """Download what is missing. Returns the folder or file. Blocks while data arrives; raises `HubRefusal`."""
        from huggingface_hub import constants, hf_hub_download, snapshot_download

        held = self.held()
        if held is not None and constants.HF_HUB_OFFLINE:
            return held
        try:
            newest = self.ask(PATIENT_S if held is None else HUB_ANSWER_S).sha
            if held is not None and newest in held.parts:
                return held
            with self._told():
                if not self.file:
                    return Path(snapshot_download(self.repository, allow_patterns=list(FETCHED)))
                first, *_ = [hf_hub_download(self.repository, part) for part in part_names(self.file)]
                return Path(first)
        except HubRefusal as refusal:
            if held is None:
                raise
            LOG.warning("%s: using the earlier download, since the hub fails (%s)", self.name, refusal.reason)
            return held

    def _is_whole(self, folder: Path) -> bool:
        """True for a complete snapshot. A broken index counts as incomplete."""
        from huggingface_hub import snapshot_download

        if self.file:
            return all((folder / part).is_file() for part in part_names(self.file))
        try:
            snapshot_download(
                self.repository, revision=folder.name, allow_patterns=list(FETCHED), local_files_only=True
            )
            if not (folder / WHOLE).is_file():
                named = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
                return bool(named) and all((folder / name).is_file() for name in set(named.values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False
        return (folder / CONFIG_FILE).is_file()

    @contextmanager
    def _told(self) -> Iterator[None]:
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except Exception as error:
            # Broad: errors of proxies depend on the HTTP library.
            LOG.debug("the hub does not provide %s", self.name, exc_info=True)
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            if isinstance(error, HfHubHTTPError):
                sentence = (
                    f"No model {self.name!r} was found: it is not a folder, GGUF file or zoo:NAME, and the "
                    f"Hugging Face hub answered: {reason}"
                )
            else:
                sentence = (
                    f"{self.name!r} is not here as a whole, and the Hugging Face hub does not give it ({reason}): "
                    "look at this machine's network and proxy, or name a folder or a GGUF file."
                )
            raise HubRefusal(sentence, reason) from None


@cache
def _bound_all_calls() -> None:
    """Set timeouts for all calls of the hub's library, including those of transformers."""
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def bound(request: Any) -> None:
        waits_s = request.extensions.setdefault("timeout", {})
        waits_s.update({step: STEP_S for step in ("connect", "read", "write") if waits_s.get(step) is None})

    def client() -> Any:
        made = default_client_factory()
        hooks = made.event_hooks
        made.event_hooks = {**hooks, "request": [*hooks["request"], bound]}
        return made

    set_client_factory(client)
