"""A verifier that lies: `python -m tests.e2e.lying_verifier join --role verifier ...`, like `cosine-node`.

`COSINE_TEST_LIE` says how: "token" is another one at one output position of 200, "silence" the same, after which it
says nothing more, "seed" another one than the request's, "bits" weights of four bits. It announces the true target.
"""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from cosine_node.cli import main
from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.torch import loading
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.passes.runner import Pass, ThreadRunner
from cosine_protocol.request import Sampling

EVERY: Final = 200
LIE_AT: Final = 20
SILENT_AFTER: Final = 40
"""Output positions: of the lie, and of the last token before silence."""
LEVELS: Final = 15


def lie_in_tokens() -> None:
    true = TorchEngine.forward

    def forward(engine: TorchEngine, rows: Sequence[Row]) -> list[RowResult]:
        results = true(engine, rows)
        for index, (row, result) in enumerate(zip(rows, results, strict=True)):
            choices = [
                replace(choice, token=(choice.token + 1) % engine.vocab_tokens) if at % EVERY == LIE_AT else choice
                for at, choice in zip(positions_of(engine, row), result.choices, strict=True)
            ]
            results[index] = replace(result, choices=tuple(choices))
        return results

    setattr(TorchEngine, "forward", forward)  # noqa: B010  # no option of an honest node lies


def positions_of(engine: TorchEngine, row: Row) -> list[int]:
    """The output positions for which a fed row has choices."""
    tree = engine.tree(row.sequence)
    return [tree.nodes[node].index + 1 - tree.prompt_tokens for node in row.nodes[row.scored_from :]]


def fall_silent() -> None:
    true = ThreadRunner.forward

    async def forward(runner: ThreadRunner, rows: Sequence[Row]) -> Pass:
        done = await true(runner, rows)
        engine: Any = runner._engine
        if any(at > SILENT_AFTER for row in rows for at in positions_of(engine, row)):
            await asyncio.Event().wait()
        return done

    setattr(ThreadRunner, "forward", forward)  # noqa: B010


def use_another_seed() -> None:
    true = TorchEngine.open

    def opened(engine: TorchEngine, *, sampling: Sampling, prompt_tokens: int, scope: str | None = None) -> int:
        other = replace(sampling, seed=sampling.seed + 1)
        return true(engine, sampling=other, prompt_tokens=prompt_tokens, scope=scope)

    setattr(TorchEngine, "open", opened)  # noqa: B010


def round_weights() -> None:
    true = loading.load_model

    def load_model(source: str, **options: Any) -> Any:
        model = true(source, **options)
        with torch.inference_mode():
            for weights in (each for each in model.parameters() if each.dim() == 2):
                scale = weights.abs().amax(dim=1, keepdim=True).clamp(min=1e-9) / (LEVELS // 2)
                weights.copy_((weights / scale).round() * scale)
        return model

    setattr(loading, "load_model", load_model)  # noqa: B010


if __name__ == "__main__":
    match os.environ["COSINE_TEST_LIE"]:
        case "seed":
            use_another_seed()
        case "bits":
            round_weights()
        case lie:
            lie_in_tokens()
            if lie == "silence":
                fall_silent()
    main()
