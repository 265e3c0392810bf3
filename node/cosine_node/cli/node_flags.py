"""The options of the commands that run nodes, as they are typed, and which of them each role has."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from cosine_engine.pool_size import AUTO
from cosine_node.verifier.admission import MAX_COORDINATED
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_terminal.help_screen import everyday
from cosine_terminal.options import (
    AsJson,
    DeniedPeers,
    IdentityFile,
    InitialPeers,
    LogFormat,
    Network,
    SwarmFile,
    declared,
)

model_option = partial(declared, panel="Model")
network_option = partial(declared, panel="Network")
operation_option = partial(declared, panel="Operation")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """The options of `join`. A command with some of them leaves the others at their defaults."""

    model: list[str] | None = model_option(
        None,
        "MODEL",
        "zoo:NAME, a folder, or a Hugging Face id. Also ngram, or the texts of a server, openai:URL#MODEL; may be "
        "repeated for several drafters.",
        everyday=True,
    )
    target: str | None = model_option(
        None, "MODEL", "A drafter's target, or a public name. That of a verifier's model.", everyday=True
    )
    engine: str = model_option(
        AUTO,
        "ENGINE",
        "torch, llama (llama.cpp, GGUF files only), vllm (no GGUF files), or auto: torch if it can hold the model.",
    )
    device: str = model_option(
        AUTO, "DEVICE", "auto, cpu, cuda, cuda:0 or mps; with llama.cpp also vulkan or metal."
    )
    dtype: str = model_option(AUTO, "DTYPE", "auto, float32, bfloat16 or float16.")
    quantize: str | None = model_option(
        None,
        "KIND",
        "Weight format: float16 (CPU), int8, int4 (on a GPU by torchao), or stored, as in the GGUF file.",
    )
    kv_memory: str = model_option(
        AUTO, "SIZE", "Size of the KV cache, such as 8GiB, or a share of the free memory, such as 0.5."
    )
    vllm_python: Path | None = model_option(
        None, "FILE", "Python with vLLM 0.32.0, for --engine vllm. Default: that of `make vllm`."
    )
    tensor_parallel: int = model_option(1, "COUNT", "Processes or cards that share each layer in vLLM.")
    pipeline_parallel: int = model_option(1, "COUNT", "Processes or cards that vLLM divides the layers among.")
    max_requests: int = operation_option(16, "COUNT", "Maximum number of concurrent requests.")
    initial_peers: InitialPeers = None
    network: Network = DEFAULT_NETWORK
    swarm: SwarmFile = None
    identity: IdentityFile = None
    host_maddr: list[str] | None = network_option(
        None,
        "ADDRESS",
        "Address to listen on. For example /ip4/0.0.0.0/tcp/4001; may be repeated.",
        everyday=True,
    )
    announce_maddr: list[str] | None = network_option(
        None, "ADDRESS", "Address to announce to others; may be repeated."
    )
    lan: bool | None = network_option(
        None, "", "Be found in the local network, and find nodes there. Default: yes.", name="lan/--no-lan"
    )
    layers: str | None = model_option(
        None,
        "FIRST:END",
        "Layers of a stage, as in 8:16, or auto. The end is excluded; auto are those that the swarm lacks.",
        everyday=True,
    )
    memory: str | None = model_option(
        None,
        "SIZE",
        "Memory for a stage, such as 6GiB. It holds weights and KV cache; or a share of the free memory.",
        everyday=True,
    )
    over_stages: bool = model_option(
        False, "", "Hold no weights: run a verifier's passes over stages of the swarm, which hold the layers."
    )
    share_weights: bool = operation_option(
        True,
        "",
        "Let stages download the target's weights from this node.",
        name="share-weights/--no-share-weights",
    )
    draft_model: str | None = model_option(
        None,
        "MODEL",
        "Model that drafts with a verifier's. Or an EAGLE-3 head; mtp: the target's own layer; none: no drafter. "
        "Default: the head that ships for the target, or over stages the general drafter.",
        everyday=True,
    )
    expertise: str = model_option(
        "",
        "DOMAINS",
        "Domains of a drafter, separated by commas. Default: those of the model, if it ships.",
    )
    deterministic: bool = model_option(False, "", "Compute each token bit for bit as in any other batch; slower.")
    threads: int | None = model_option(
        None, "COUNT", "Number of CPU threads. Default: 1 for a small model, else all cores."
    )
    max_coordinated: int = operation_option(
        MAX_COORDINATED,
        "COUNT",
        "Maximum number of requests whose drafters a verifier coordinates for distant clients.",
    )
    share_prefixes: bool = operation_option(
        False, "", "Share cached prefixes between clients, who can then infer them from response times."
    )
    emulate: str | None = operation_option(
        None, "PROFILE", "Emulated device and link: VERIFIER_MS/DRAFTER_MS@RTT_MS or @RTT_MS."
    )
    hours: str | None = operation_option(
        None, "BEGIN-END", "Time of day in which the node works, such as 22:00-07:00."
    )
    only_idle: bool = operation_option(False, "", "Work while others leave CPU and card idle.", everyday=True)
    on_mains: bool = operation_option(False, "", "Work only while the machine is not on battery.")
    unload_after: str | None = operation_option(
        None,
        "TIME",
        "Give back the model's memory after a time without work, such as 30m; the next request waits for it.",
    )
    share: float = operation_option(1.0, "PART", "Part of the time that passes take, and of the usual KV cache.")
    role: str | None = declared(None, "ROLE", "drafter, verifier or stage.", everyday=True)
    deny: DeniedPeers = None
    relay: list[str] | None = network_option(None, "ADDRESS", "Relay for a node behind NAT; may be repeated.")
    metrics_port: int | None = operation_option(None, "PORT", "Port of the Prometheus metrics.")
    metrics_host: str = operation_option("127.0.0.1", "HOST", "Address of the metrics; 0.0.0.0 is all.")
    page: int | None = operation_option(
        None, "PORT", "Port of a page of the swarm, for this machine only; 0 is any free port."
    )
    check: Annotated[bool, everyday("--check", help="Check that the node could work, and exit.")] = False
    report: Annotated[
        bool,
        typer.Option(
            "--report", metavar="", help="Check, and print a report without addresses, peer ids and paths."
        ),
    ] = False
    log_format: LogFormat = "pretty"
    as_json: AsJson = False


_DRAFTER: Final = {"expertise"}
_VERIFIER: Final = {"draft_model", "max_coordinated", "share_prefixes", "share_weights"}
_STAGE: Final = {"layers", "memory"}
_ENGINE: Final = {"engine", "kv_memory", "deterministic", "vllm_python", "tensor_parallel", "pipeline_parallel"}
"""Options of an engine that holds a whole model."""


def _without(*groups: Collection[str]) -> tuple[str, ...]:
    left_out = {"role", "over_stages"}.union(*groups)
    return tuple(each.name for each in fields(NodeFlags) if each.name not in left_out)


OF_JOIN: Final = tuple(each.name for each in fields(NodeFlags))
OF_A_DRAFTER: Final = _without(_VERIFIER, _STAGE)
OF_A_VERIFIER: Final = _without(_DRAFTER, _STAGE)
OF_A_STAGE: Final = _without(_DRAFTER, _VERIFIER, _ENGINE, {"unload_after"})
OF_A_HEAD: Final = _without(_DRAFTER, _STAGE, _ENGINE, {"quantize", "dtype", "share", "unload_after"})
OF_A_BOOTSTRAP: Final = (
    *("initial_peers", "network", "swarm", "identity", "host_maddr", "announce_maddr", "lan", "deny"),
    *("log_format", "as_json"),
)
