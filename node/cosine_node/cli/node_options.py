"""Command-line options that several commands of nodes share, as fields of a dataclass."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cosine_engine.load_options import EngineKind, LoadOptions, VllmOptions
from cosine_engine.pool_size import AUTO, parse_pool_size
from cosine_node.serving.node_options import NetworkOptions
from cosine_p2p.invitation import follow_invitations
from cosine_p2p.transport.config import DEFAULT_HOST_MADDRS, DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_terminal.options import (
    IdentityFile,
    InitialPeers,
    Network,
    SwarmFile,
    access_of,
    network_option,
    option,
    several,
)

model_option = partial(option, panel="Model")
operation_option = partial(option, panel="Operation")

Relays = Annotated[
    list[str] | None, network_option("relay", "ADDRESS", "Relay for a node behind NAT; may be repeated.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The network that a node is in, and the addresses at which others reach it."""

    initial_peers: InitialPeers = None
    network: Network = DEFAULT_NETWORK
    swarm: SwarmFile = None
    identity: IdentityFile = None
    host_maddr: Annotated[
        list[str] | None,
        network_option(
            "host-maddr",
            "ADDRESS",
            "Address to listen on. For example /ip4/0.0.0.0/tcp/4001; may be repeated.",
            everyday=True,
        ),
    ] = None
    announce_maddr: Annotated[
        list[str] | None,
        network_option("announce-maddr", "ADDRESS", "Address to announce to others; may be repeated."),
    ] = None
    lan: Annotated[
        bool | None,
        network_option("lan/--no-lan", "", "Be found in the local network, and find nodes there. Default: yes."),
    ] = None

    def network_options(self, deny: list[str] | None, **more: Any) -> NetworkOptions:
        """The network options of the process. Raises `UsageError`."""
        access = access_of(self.network, self.swarm, deny, lan=self.lan)
        peers, access = follow_invitations(several(self.initial_peers), access)
        return NetworkOptions(
            access=access,
            identity_file=self.identity or access.identity_file,
            initial_peers=peers,
            host_maddrs=several(self.host_maddr) or DEFAULT_HOST_MADDRS,
            announce_maddrs=several(self.announce_maddr),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModelOptions:
    """Model of a node, and its engine."""

    model: Annotated[
        list[str] | None,
        model_option(
            "model",
            "MODEL",
            "zoo:NAME, a folder, or a Hugging Face id. Also ngram, or the texts of a server, openai:URL#MODEL; may "
            "be repeated for several drafters.",
            everyday=True,
        ),
    ] = None
    target: Annotated[
        str | None,
        model_option(
            "target", "MODEL", "A drafter's target, or a public name. That of a verifier's model.", everyday=True
        ),
    ] = None
    engine: Annotated[
        str,
        model_option(
            "engine",
            "ENGINE",
            "torch, llama (llama.cpp, GGUF files only), vllm (no GGUF files), or auto: torch if it can hold the "
            "model.",
        ),
    ] = AUTO
    device: Annotated[
        str,
        model_option("device", "DEVICE", "auto, cpu, cuda, cuda:0 or mps; with llama.cpp also vulkan or metal."),
    ] = AUTO
    dtype: Annotated[str, model_option("dtype", "DTYPE", "auto, float32, bfloat16 or float16.")] = AUTO
    quantize: Annotated[
        str | None,
        model_option(
            "quantize",
            "KIND",
            "Weight format: float16 (CPU), int8, int4 (on a GPU by torchao), or stored, as in the GGUF file.",
        ),
    ] = None
    kv_memory: Annotated[
        str,
        model_option(
            "kv-memory", "SIZE", "Size of the KV cache, such as 8GiB, or a share of the free memory, such as 0.5."
        ),
    ] = AUTO
    vllm_python: Annotated[
        Path | None,
        model_option(
            "vllm-python", "FILE", "Python with vLLM 0.32.0, for --engine vllm. Default: that of `make vllm`."
        ),
    ] = None
    tensor_parallel: Annotated[
        int, model_option("tensor-parallel", "COUNT", "Processes or cards that share each layer in vLLM.")
    ] = 1
    pipeline_parallel: Annotated[
        int, model_option("pipeline-parallel", "COUNT", "Processes or cards that vLLM divides the layers among.")
    ] = 1
    max_requests: Annotated[
        int, operation_option("max-requests", "COUNT", "Maximum number of concurrent requests.")
    ] = 16

    def engine_choice(self, role: Role | None, **more: Any) -> LoadOptions:
        """The engine options for a node of that role. Raises `UsageError`."""
        is_verifier = role is Role.VERIFIER
        return LoadOptions(
            kind=EngineKind.parse(self.engine),
            device=self.device,
            dtype=self.dtype,
            quantize=self.quantize,
            vllm=VllmOptions(self.vllm_python, self.tensor_parallel, self.pipeline_parallel),
            pool_size=parse_pool_size(self.kv_memory, requests=self.max_requests, is_verifier=is_verifier),
            **more,
        )


def parse_role(text: str) -> Role:
    if text not in set(Role):
        raise UsageError(f"--role must be one of {', '.join(Role)}, not {text!r}.")
    return Role(text)
