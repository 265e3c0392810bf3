"""Emulated devices and models: the time of a pass by a roofline, from data sheets and stated assumptions.

Nothing here was measured by this project; every deployment's name states that it is emulated. A pass over n tokens
costs max(bytes read / bandwidth, operations / speed) + layers x launch. Read are all weights once and every
context's keys and values; operations are 2 x parameters x n plus attention over the context.

Memory, bandwidth and speed (dense bf16 with fp32 accumulation):

- laptop-cpu: 8 Zen 4 cores at 3.3 GHz with 64 bf16 operations a cycle each; 32 GiB of DDR5-5600, two channels.
- rtx-3060: NVIDIA's specifications; the speed is the 3090's per multiprocessor and clock (28 at 1.78 GHz).
- rtx-2080ti: NVIDIA Turing GPU architecture whitepaper (the reference board, fp16 with fp32 accumulation).
- rtx-3090: NVIDIA Ampere GA102 whitepaper. rtx-4090: NVIDIA Ada GPU architecture whitepaper.
- a100-80gb, h200: NVIDIA's data sheets, SXM.

Models are published configurations: Llama 3.1 8B and 70B, Llama 3.2 1B and 3B, Qwen2.5 0.5B and 32B.

Assumptions: the efficiencies and launch times below; 90 % of a card's memory is usable (vLLM's default)
and 75 % of a laptop's; int8 and int4 take 8.5 and 4.85 bits a weight with their scales (llama.cpp's Q8_0 and
Q4_K_M) and compute as fast as bf16, which for few tokens needs kernels like IST-DASLab's Marlin.

The efficiencies were fitted to published tokens/s of single streams; the model deviates from them by:

- llama.cpp, XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024, 1,024 generated tokens:
  8B f16 on rtx-3090 46.5 (+2 %), rtx-4090 54.3 (-6 %), a100-80gb 53.2 (+66 %);
  8B Q4_K_M 111.7 (-1 %), 127.7 (-7 %), 133.4 (+47 %); 70B Q4_K_M on a100-80gb 24.3 (+4 %).
- pytorch-labs/gpt-fast README, a100-80gb limited to 330 W:
  Llama 2 7B bf16 104.9 (-1 %), int8 155.6 (+1 %), int4 196.8 (+16 %); 70B int8 19.1 (-10 %), int4 25.3 (+3 %).

At 512 tokens it is further off. Prompts of 8B f16 run in llama.cpp at 4,445 tokens/s on rtx-3090 (-41 %) and 9,382
on rtx-4090 (-35 %), with fp16 accumulation, and at 7,741 on an A100 PCIe (+47 %). No comparable figure was found
for rtx-2080ti, rtx-3060, laptop-cpu and h200.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeVar

from cosine_engine.curve import CostCurve, rising
from cosine_protocol.errors import UsageError

_T = TypeVar("_T")

CURVE_TOKENS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Sizes of a pass at which a curve is computed: from one token to the largest chunk of a prompt."""
COMPUTE_EFFICIENCY: Final = 0.6
"""The part of its peak speed that a device reaches: one of the assumptions above."""
VALUE_BYTES: Final = 2
"""The KV cache and hidden states are kept in bf16."""


class Precision(Enum):
    """Number formats of weights, best first: bits of a weight and the part of the bandwidth its kernels reach."""

    BF16 = ("bf16", 16.0, 1.0)
    INT8 = ("int8", 8.5, 0.85)
    INT4 = ("int4", 4.85, 0.75)

    def __init__(self, label: str, bits: float, efficiency: float) -> None:
        self.label = label
        self.weight_bytes = bits / 8
        self.efficiency = efficiency


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An accelerator."""

    memory_bytes: float
    bandwidth_bytes_per_s: float
    operations_per_s: float
    usable_memory: float = 0.9
    bandwidth_efficiency: float = 0.85
    launch_s: float = 25e-6

    @property
    def usable_bytes(self) -> float:
        return self.memory_bytes * self.usable_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelClass:
    """A dense transformer. `width` is that of a hidden state, `key_width` of the keys of one token and layer."""

    parameters: float
    layers: int
    width: int
    key_width: int

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.key_width * VALUE_BYTES


# Data sheets and published configurations, as named above; efficiencies are assumptions.
DEVICES: Final[Mapping[str, Device]] = MappingProxyType(
    {
        "laptop-cpu": Device(
            memory_bytes=32 * 2**30,
            bandwidth_bytes_per_s=89.6e9,
            operations_per_s=1.69e12,
            usable_memory=0.75,
            bandwidth_efficiency=0.7,
        ),
        "rtx-2080ti": Device(memory_bytes=11 * 2**30, bandwidth_bytes_per_s=616e9, operations_per_s=53.8e12),
        "rtx-3060": Device(memory_bytes=12 * 2**30, bandwidth_bytes_per_s=360e9, operations_per_s=25.6e12),
        "rtx-3090": Device(memory_bytes=24 * 2**30, bandwidth_bytes_per_s=936e9, operations_per_s=71e12),
        "rtx-4090": Device(memory_bytes=24 * 2**30, bandwidth_bytes_per_s=1008e9, operations_per_s=165.2e12),
        "a100-80gb": Device(
            memory_bytes=80 * 2**30,
            bandwidth_bytes_per_s=2039e9,
            operations_per_s=312e12,
            bandwidth_efficiency=0.75,
        ),
        "h200": Device(
            memory_bytes=141e9,
            bandwidth_bytes_per_s=4.8e12,
            operations_per_s=989e12,
            bandwidth_efficiency=0.75,
        ),
    }
)
MODELS: Final[Mapping[str, ModelClass]] = MappingProxyType(
    {
        "0.5B": ModelClass(parameters=0.494e9, layers=24, width=896, key_width=128),
        "1B": ModelClass(parameters=1.236e9, layers=16, width=2048, key_width=512),
        "3B": ModelClass(parameters=3.213e9, layers=28, width=3072, key_width=1024),
        "8B": ModelClass(parameters=8.030e9, layers=32, width=4096, key_width=1024),
        "32B": ModelClass(parameters=32.76e9, layers=64, width=5120, key_width=1024),
        "70B": ModelClass(parameters=70.55e9, layers=80, width=8192, key_width=1024),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A model class on a device, for a sequence of `context_tokens`.

    Raises `UsageError` if it does not fit the memory.
    """

    name: str
    device: Device
    model: ModelClass
    precision: Precision
    context_tokens: int = 1024

    def __post_init__(self) -> None:
        needed_bytes = self.weight_bytes + self.cache_bytes
        if needed_bytes > self.device.usable_bytes:
            raise UsageError(
                f"{self.name} does not fit: it needs {needed_bytes / 1e9:.1f} GB of the usable "
                f"{self.device.usable_bytes / 1e9:.1f} GB; use a smaller model."
            )

    @property
    def weight_bytes(self) -> float:
        return self.model.parameters * self.precision.weight_bytes

    @property
    def cache_bytes(self) -> int:
        """Keys and values of the context."""
        return self.context_tokens * self.model.token_bytes

    def seconds(self, tokens: int) -> float:
        """Return the seconds of a pass over `tokens` tokens."""
        device, model = self.device, self.model
        read_bytes = self.weight_bytes / self.precision.efficiency + self.cache_bytes
        reading_s = read_bytes / (device.bandwidth_bytes_per_s * device.bandwidth_efficiency)
        attention = 4 * model.layers * model.width * self.context_tokens
        operations = tokens * (2 * model.parameters + attention)
        computing_s = operations / (device.operations_per_s * COMPUTE_EFFICIENCY)
        return max(reading_s, computing_s) + model.layers * device.launch_s

    def curve(self) -> CostCurve:
        """Return the cost curve at `CURVE_TOKENS`."""
        return CostCurve(rising([(tokens, self.seconds(tokens)) for tokens in CURVE_TOKENS]))


def deploy(device: str, model: str) -> Deployment:
    """Return a model on a device at the best precision that fits. Raises `UsageError` if none does."""
    card, size = _named(DEVICES, device, "device"), _named(MODELS, model, "model")

    def at(precision: Precision) -> Deployment:
        name = f"emulated {device}, {model} {precision.label}"
        return Deployment(name=name, device=card, model=size, precision=precision)

    *better, last = Precision
    for precision in better:
        with suppress(UsageError):
            return at(precision)
    return at(last)


def _named(known: Mapping[str, _T], name: str, kind: str) -> _T:
    if name not in known:
        raise UsageError(f"Unknown {kind} {name!r}; choose from {', '.join(known)}.")
    return known[name]
