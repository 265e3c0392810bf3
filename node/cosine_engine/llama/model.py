"""A GGUF file loaded into llama.cpp, and a context of it: passes over tokens in lanes."""

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_float, c_int8, c_int32, c_void_p, sizeof
from itertools import accumulate
from typing import Final

import numpy as np

from cosine_engine.base import OutOfMemory, PassAbandoned
from cosine_engine.gguf.file import GgufFile
from cosine_engine.lanes.lanes import FedToken, Floats
from cosine_engine.llama.library import LlamaBatch, LlamaLibrary
from cosine_protocol.errors import LocalProtocolError, UsageError

F32: Final = 0
F16: Final = 1
"""ggml's numbers for types of tensors; keys and values in float16 are llama.cpp's default."""


def kv_type_of(file: GgufFile) -> int:
    """Return ggml's number for the type of a file's keys and values: float32 for weights in float32."""
    return F32 if file.weights == "F32" else F16


def token_bytes_of(file: GgufFile) -> int:
    """Return the memory of a token's keys and values in all layers."""
    return file.kv_bytes_per_token(4 if kv_type_of(file) == F32 else 2)


class LlamaModel:
    """The weights of a GGUF file. Close it after its contexts."""

    def __init__(
        self, library: LlamaLibrary, file: GgufFile, *, device: int | None = None, has_weights: bool = True
    ) -> None:
        """Load a file onto a device, or for the processor; without weights only to check that it can be loaded.

        Raises `UsageError` with llama.cpp's reason, and for a kind of model unsuitable for token trees.
        """
        if file.has_towers:
            raise UsageError(
                f"{file.path.name} holds more than a language model, a tower for images or sounds, which llama.cpp "
                "does not load: use --engine torch, or a file of the language model alone."
            )
        self.library = library
        self.file = file
        self.on_card = device is not None
        self.kv_type = kv_type_of(file)
        c = library.c
        params = c.llama_model_default_params()
        # A null-terminated list, which must live until the file is loaded.
        devices = (c_void_p * 2)(device, None)
        params.devices = addressof(devices)
        params.n_gpu_layers = -1 if self.on_card else 0
        if not has_weights:
            # Nothing is loaded into memory, unlike for a mapped file (load_mode 0 maps none).
            params.no_alloc, params.load_mode = True, 0
        library.errors.clear()
        self.handle: int | None = c.llama_model_load_from_file(str(file.parts[0]).encode(), params)
        if self.handle is None:
            raise UsageError(f"{file.path.name} cannot be loaded by llama.cpp: {_reason(library.errors)}.")
        self.vocab_tokens: int = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.handle))
        self.parameters: int = c.llama_model_n_params(self.handle)
        refusal = None
        if c.llama_model_is_recurrent(self.handle) or c.llama_model_is_hybrid(self.handle):
            refusal = (
                f"Models of the kind '{file.architecture}' cannot be used with llama.cpp: they keep a recurrent "
                "state, which the branches of a token tree cannot share."
            )
        elif c.llama_model_has_encoder(self.handle) or c.llama_model_is_diffusion(self.handle):
            refusal = f"{file.path.name} is no model that generates token after token."
        if refusal is not None:
            self.close()
            raise UsageError(refusal)

    def close(self) -> None:
        if self.handle is not None:
            self.library.c.llama_model_free(self.handle)
            self.handle = None


class LlamaContext:
    """The KV cache of a model, `lanes` paths in it, and the passes over them. Implements `lanes.LaneModel`.

    All lanes have one cache, in which shared tokens are stored once.
    """

    def __init__(self, model: LlamaModel, *, tokens: int, lanes: int, pass_tokens: int, threads: int) -> None:
        """Create a cache of `tokens` tokens for passes of at most `pass_tokens`. Raises `UsageError`."""
        self.model = model
        self.lanes = lanes
        self.pass_tokens = pass_tokens
        self._c = model.library.c
        params = self._c.llama_context_default_params()
        params.n_ctx = tokens
        params.n_batch = params.n_ubatch = pass_tokens
        params.n_seq_max = lanes
        params.kv_unified = True
        # The library ends the process if a pass has more outputs than announced, or fewer than sequences.
        params.n_outputs_max = params.n_outputs_max_per_seq = max(lanes, pass_tokens)
        params.n_threads = params.n_threads_batch = threads
        # Flash attention (1; 0 is without) leaves out hidden tokens, and computes each row of a short pass
        # separately, but in float16: it changed logits of the embedded target by 5e-3.
        params.flash_attn_type = 0 if model.kv_type == F32 else 1
        params.type_k = params.type_v = model.kv_type
        params.offload_kqv = params.op_offload = model.on_card
        model.library.errors.clear()
        self._handle: int | None = self._c.llama_init_from_model(model.handle, params)
        if self._handle is None:
            raise UsageError(f"llama.cpp cannot run this model: {_reason(model.library.errors)}.")
        self._memory = self._c.llama_get_memory(self._handle)
        # Before each operation the library asks a C function whether to stop: strlen of these bytes, which needs no
        # lock of Python's and is true once the first byte is not 0.
        self._is_abandoned = ctypes.create_string_buffer(2)
        strlen = ctypes.cast(ctypes.CDLL(None).strlen, c_void_p)
        self._c.llama_set_abort_callback(self._handle, strlen, addressof(self._is_abandoned))

    def close(self) -> None:
        if self._handle is not None:
            self._c.llama_free(self._handle)
            self._handle = None

    def share(self, source: int, target: int, start: int, stop: int) -> None:
        self._c.llama_memory_seq_cp(self._memory, source, target, start, stop)

    def forget(self, lane: int, start: int, stop: int | None = None) -> None:
        self._c.llama_memory_seq_rm(self._memory, lane, start, -1 if stop is None else stop)

    def clear(self) -> None:
        """Forget and overwrite everything: without flash attention NaN reaches tokens that must not see it."""
        self._c.llama_memory_clear(self._memory, True)

    def abandon(self) -> None:
        """Stop the running pass in another thread between two operations; a card continues to the end."""
        self._is_abandoned[0] = b"\1"

    def begin(self) -> None:
        """Reset `abandon` at the beginning of passes."""
        self._is_abandoned[0] = b"\0"

    def logits(self, fed: Sequence[FedToken]) -> Floats:
        """Feed tokens; return the wanted logits [wanted, vocab], valid until the next pass.

        The tokens of a lane follow each other and the lane's contents. Raises `PassAbandoned`, `OutOfMemory` or
        `LocalProtocolError`, with nothing fed.
        """
        # Small ctypes arrays are created several times faster than numpy's; they hold the data of the batch.
        count = len(fed)
        tokens = (c_int32 * count)(*[token.token for token in fed])
        positions = (c_int32 * count)(*[token.position for token in fed])
        counts = (c_int32 * count)(*[len(token.lanes) for token in fed])
        lanes = (c_int32 * sum(counts))(*[lane for token in fed for lane in token.lanes])
        starts = accumulate(counts[:-1], initial=0)
        pointers = (c_void_p * count)(*[addressof(lanes) + start * sizeof(c_int32) for start in starts])
        wanted = (c_int8 * count)(*[token.is_wanted for token in fed])
        arrays = (tokens, None, positions, counts, pointers, wanted)
        batch = LlamaBatch(count, *(None if array is None else addressof(array) for array in arrays))
        self.model.library.errors.clear()
        result = self._c.llama_decode(self._handle, batch)
        if result == 2:
            raise PassAbandoned("The pass was abandoned.")
        # A device failed; -1 and 1 are faults of this program.
        if result <= -2:
            raise OutOfMemory(f"llama.cpp could not compute a pass: {_reason(self.model.library.errors)}.")
        if result:
            raise LocalProtocolError(f"llama.cpp refused a pass: {_reason(self.model.library.errors)}.")
        rows, vocab_tokens = sum(wanted), self.model.vocab_tokens
        if not rows:
            return np.empty((0, vocab_tokens), dtype=np.float32)
        first = self._c.llama_get_logits(self._handle)
        memory = (c_float * (rows * vocab_tokens)).from_address(first)
        return np.frombuffer(memoryview(memory), dtype=np.float32).reshape(rows, vocab_tokens)


def _reason(errors: Sequence[str]) -> str:
    """Return the first error of a failure, which names its cause, without the name of its function."""
    first = errors[0] if errors else "it does not say why"
    # The loader describes the fault of a file after this.
    return first.split("error loading model: ")[-1].split(": ", 1)[-1].rstrip(".")
