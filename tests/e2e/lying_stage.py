"""A stage that lies: `python -m tests.e2e.lying_stage join --role stage ...`, like `cosine-node`.

It sends finite nonsense in place of what its layers compute.
"""

from collections.abc import Sequence

import torch

from cosine_node.cli import main
from cosine_node.engine.base import Row, RowResult
from cosine_node.stages.host import HostedChain


def send_nonsense() -> None:
    true = HostedChain.run

    def run(
        chain: HostedChain, rows: Sequence[Row], activations: bytes | bytearray | None
    ) -> bytes | list[RowResult]:
        found = true(chain, rows, activations)
        if isinstance(found, list):
            return found
        vectors = torch.frombuffer(bytearray(found), dtype=torch.float32)
        drawn = vectors.std() * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(len(found)))
        return drawn.view(torch.uint8).numpy().tobytes()

    setattr(HostedChain, "run", run)  # noqa: B010  # no option of an honest stage lies


if __name__ == "__main__":
    send_nonsense()
    main()
