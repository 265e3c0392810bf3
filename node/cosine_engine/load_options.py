"""The options of loading a model: library, numerics, memory and role."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cosine_engine.pool_size import PoolSize
from cosine_engine.vocabulary import KnownTokens
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import DETERMINISTIC, DTYPES, LLAMA, VLLM, arithmetic_of, held_type_of

if TYPE_CHECKING:
    # It needs numpy, and the command line of the light client reads these options.
    from cosine_engine.constraints.grammars import Grammars

TESTING: Final = "testing"
"""The stage of loading in which the weights are read, and passes are compared with plain decoding."""
MEASURING: Final = "measuring"
"""The stage of loading in which the cost of passes is measured."""
QUANTISATIONS: Final = ("float16", "int8", "int4")
"""The values of `--quantize` that numerics name."""


class EngineKind(StrEnum):
    """The value of `--engine`.

    AUTO is llama.cpp, if installed, for a GGUF file that PyTorch cannot hold in float16 on the CPU: with a GPU,
    without AVX2, with too little memory, or for a mixture of experts or an unknown model. Else it is PyTorch.
    """

    AUTO = "auto"
    TORCH = "torch"
    LLAMA = "llama"
    VLLM = "vllm"

    @classmethod
    def parse(cls, text: str) -> "EngineKind":
        """Return the value of `--engine`. Raises `UsageError`."""
        if text not in set(cls):
            raise UsageError(f"--engine must be auto, torch, llama or vllm, not {text!r}.")
        return cls(text)


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """The Python with vLLM, and the numbers of processes that share each layer and that share all layers."""

    python: Path | None = None
    """None is the one that `make vllm` installs."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def processes(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def _ignore(stage: str) -> None:
    """Ignore a stage; a lambda could not be pickled for the doctor's child process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options of loading a model: those of the command line, then those of its role."""

    kind: EngineKind = EngineKind.AUTO
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; with llama.cpp also vulkan or metal, if the installed wheel has them."""
    dtype: str = "auto"
    """auto, float32, bfloat16 or float16. On a CPU, auto is float32, elsewhere the stored one."""
    quantize: str | None = None
    """float16, int8, int4 or stored. Default: as `torch.loading.default_quantisation` says."""
    threads: int | None = None
    pool_size: PoolSize = field(default_factory=PoolSize)
    is_deterministic: bool = False
    """True if a token's result must depend bit for bit only on its own path."""
    vllm: VllmOptions = field(default_factory=VllmOptions)

    known: KnownTokens = field(default_factory=KnownTokens)
    """The tokens that a drafter shares with its target."""
    grammars: "Grammars | None" = None
    """The constraints that choices obey. Default: none."""
    feature_layers: tuple[int, ...] = ()
    """The target's layers whose inputs a draft head reads."""
    is_served: bool = False
    """True to compare a GGUF file in PyTorch with llama.cpp first, if that is installed."""
    tell: Callable[[str], object] = _ignore
    """Called at the beginning of each stage of loading."""

    @property
    def needs_torch(self) -> bool:
        return self.dtype != "auto" or self.quantize is not None or self.is_deterministic


def join_options(numerics: str) -> tuple[str, ...]:
    """The options of `cosine-node join` for these numerics. Empty for unknown ones."""
    arithmetic, held = arithmetic_of(numerics), held_type_of(numerics)
    if arithmetic == LLAMA:
        return ("--engine", EngineKind.LLAMA)
    if arithmetic not in DTYPES:
        return ()
    if numerics.startswith(VLLM):
        return ("--engine", EngineKind.VLLM, "--dtype", arithmetic)
    quantised = ("--quantize", held) if held in QUANTISATIONS else ()
    # With converted weights, it is the default where it is possible.
    is_asked = numerics.endswith(DETERMINISTIC) and not (quantised and arithmetic == "float32")
    deterministic = ("--deterministic",) if is_asked else ()
    return ("--engine", EngineKind.TORCH, "--dtype", arithmetic, *quantised, *deterministic)
