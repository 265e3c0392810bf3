"""llama.cpp's C interface in the wheel xllamacpp: the functions and structs used here.

A C library does not describe its structs, and those of llama.cpp change between builds. The builds with the layout
written here are therefore listed, and loading checks that the library's defaults are at their expected places.
"""

import ctypes
import logging
import os
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

PACKAGE: Final = "xllamacpp"
KNOWN_VERSIONS: Final = ("2026.10.11549",)
"""Wheels with the struct layout below; this one has llama.cpp's build 11549."""
INSTALL: Final = f"pip install {PACKAGE}=={KNOWN_VERSIONS[-1]}"

ERRORS_KEPT: Final = 8
"""Bounds memory: the last errors, from which a sentence for the user is made."""


Field = tuple[str, Any, object]
"""A field of a struct: its name, its type, and the default that llama.cpp documents for it if it is a number."""
MODEL_PARAMS: Final[tuple[Field, ...]] = (
    ("devices", c_void_p, None),
    ("tensor_buft_overrides", c_void_p, None),
    ("n_gpu_layers", c_int32, -1),
    ("split_mode", c_int32, 1),
    ("load_mode", c_int32, -1),
    ("lazy_mode", c_int32, 1),
    ("main_gpu", c_int32, 0),
    ("tensor_split", c_void_p, None),
    ("progress_callback", c_void_p, None),
    ("progress_callback_user_data", c_void_p, None),
    ("kv_overrides", c_void_p, None),
    ("vocab_only", c_bool, False),
    ("check_tensors", c_bool, False),
    ("use_extra_bufts", c_bool, True),
    ("no_host", c_bool, False),
    ("no_alloc", c_bool, False),
    ("load_mtp", c_bool, False),
)
CONTEXT_PARAMS: Final[tuple[Field, ...]] = (
    ("n_ctx", c_uint32, 512),
    ("n_batch", c_uint32, 2048),
    ("n_ubatch", c_uint32, 512),
    ("n_seq_max", c_uint32, 1),
    ("n_rs_seq", c_uint32, 0),
    ("n_outputs_max", c_uint32, 0),
    ("n_outputs_max_per_seq", c_uint32, 1),
    ("n_threads", c_int32, 4),
    ("n_threads_batch", c_int32, 4),
    ("ctx_type", c_int32, 0),
    ("rope_scaling_type", c_int32, -1),
    ("pooling_type", c_int32, -1),
    ("attention_type", c_int32, -1),
    ("flash_attn_type", c_int32, -1),
    ("rope_freq_base", c_float, 0.0),
    ("rope_freq_scale", c_float, 0.0),
    ("yarn_ext_factor", c_float, -1.0),
    ("yarn_attn_factor", c_float, -1.0),
    ("yarn_beta_fast", c_float, -1.0),
    ("yarn_beta_slow", c_float, -1.0),
    ("yarn_orig_ctx", c_uint32, 0),
    ("defrag_thold", c_float, -1.0),
    ("cb_eval", c_void_p, None),
    ("cb_eval_user_data", c_void_p, None),
    ("type_k", c_int32, 1),
    ("type_v", c_int32, 1),
    ("unused", c_void_p * 3, None),
    ("embeddings", c_bool, False),
    ("offload_kqv", c_bool, True),
    ("no_perf", c_bool, True),
    ("op_offload", c_bool, True),
    ("swa_full", c_bool, True),
    ("kv_unified", c_bool, False),
    ("samplers", c_void_p, None),
    ("n_samplers", c_size_t, 0),
    ("ctx_other", c_void_p, None),
)
"""The fields of llama_context_params. `unused` are fields between those that this program sets."""


class ModelParams(Structure):
    """llama_model_params."""

    _fields_ = [(name, kind) for name, kind, _ in MODEL_PARAMS]


class ContextParams(Structure):
    """llama_context_params."""

    _fields_ = [(name, kind) for name, kind, _ in CONTEXT_PARAMS]


class LlamaBatch(Structure):
    """llama_batch: tokens with their positions, the sequences of each, and whether its logits are wanted."""

    _fields_ = [
        ("n_tokens", c_int32),
        ("token", c_void_p),
        ("embd", c_void_p),
        ("pos", c_void_p),
        ("n_seq_id", c_void_p),
        ("seq_id", c_void_p),
        ("logits", c_void_p),
    ]


FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "llama_backend_init": (None,),
    "llama_model_default_params": (ModelParams,),
    "llama_context_default_params": (ContextParams,),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParams),
    "llama_model_free": (None, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_diffusion": (c_bool, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_n_params": (c_uint64, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, c_void_p, c_int32, c_bool, c_bool),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParams),
    "llama_free": (None, c_void_p),
    "llama_set_abort_callback": (None, c_void_p, c_void_p, c_void_p),
    "llama_decode": (c_int32, c_void_p, LlamaBatch),
    "llama_get_logits": (c_void_p, c_void_p),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_memory_seq_cp": (None, c_void_p, c_int32, c_int32, c_int32, c_int32),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "ggml_backend_dev_count": (c_size_t,),
    "ggml_backend_dev_get": (c_void_p, c_size_t),
    "ggml_backend_dev_name": (c_char_p, c_void_p),
    "ggml_backend_dev_type": (c_int32, c_void_p),
    "ggml_backend_dev_memory": (None, c_void_p, POINTER(c_size_t), POINTER(c_size_t)),
}
"""Every C function that is called: its result and its parameters."""


class LlamaLibrary:
    """The C functions as attributes of `c`, and the last errors that llama.cpp logged."""

    def __init__(self, path: Path) -> None:
        """Load and check the library at `path`. Raises `UsageError` with one sentence."""
        # An assertion prints one line; otherwise a debugger prints hundreds.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        try:
            self.c = ctypes.CDLL(str(path))
            for name, (returned, *taken) in FUNCTIONS.items():
                function = getattr(self.c, name)
                function.restype, function.argtypes = returned, taken
        except (OSError, AttributeError) as error:
            raise UsageError(f"llama.cpp in {path.name} cannot be used ({error}); {INSTALL} has one.") from error
        for params, fields in (
            (self.c.llama_model_default_params(), MODEL_PARAMS),
            (self.c.llama_context_default_params(), CONTEXT_PARAMS),
        ):
            if any(default is not None and getattr(params, name) != default for name, _, default in fields):
                raise UsageError(
                    f"llama.cpp in {path.name} has other parameters than this program knows; {INSTALL} has those."
                )
        self.errors: list[str] = []
        # Kept here, since the library keeps no reference to it.
        self._log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(self._take_line)
        self.c.llama_log_set(self._log, None)
        self.c.llama_backend_init()

    def devices(self) -> dict[str, int]:
        """Return ggml's handles of the devices other than the processor, by lower-case name such as `cuda0`."""
        found = {}
        for number in range(self.c.ggml_backend_dev_count()):
            device = self.c.ggml_backend_dev_get(number)
            # Kind 0 are processors; all others compute separately.
            if self.c.ggml_backend_dev_type(device) != 0:
                found[self.c.ggml_backend_dev_name(device).decode().lower()] = device
        return found

    def free_bytes(self, device: int) -> int:
        """Return the free memory of a device."""
        free, total = c_size_t(), c_size_t()
        self.c.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        return free.value

    def _take_line(self, level: int, text: bytes, _: object) -> None:
        # llama.cpp's levels: 1 debug, 2 info, 3 warn, 4 error, 5 a continued line. Its errors end up in sentences
        # of this program.
        line = text.decode("utf-8", "replace").strip()
        if level == 4:
            self.errors = [*self.errors[1 - ERRORS_KEPT :], line]
        if line.strip("."):
            levels = {2: logging.DEBUG, 3: logging.DEBUG, 4: logging.INFO}
            LOG.log(levels.get(level, logging.NOTSET), "%s", line)


@lru_cache(maxsize=1)
def llama_library() -> LlamaLibrary:
    """Return the library of the installed wheel. Raises `UsageError` for a missing wheel or an unknown build."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        raise UsageError(f"--engine llama needs the package {PACKAGE}: {INSTALL}.") from None
    if found not in KNOWN_VERSIONS:
        raise UsageError(
            f"{PACKAGE} {found} holds a llama.cpp that this program does not know; {INSTALL} has one that it does."
        )
    spec = find_spec(PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    files = [file for folder in folders for kind in ("*.so", "*.pyd") for file in sorted(folder.glob(kind))]
    if not files:
        raise UsageError(f"The package {PACKAGE} is damaged: it holds no library; {INSTALL} repairs it.")
    return LlamaLibrary(files[0])


def is_installed() -> bool:
    """Return True if a wheel of any build is installed."""
    return find_spec(PACKAGE) is not None
