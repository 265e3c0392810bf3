"""Starts the demo's nodes, runs its prompts, and collects the report."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from cosine_node import zoo
from cosine_node.demo.processes import NodeProcess
from cosine_node.demo.report import PassTiming, PromptComparison, Report
from cosine_node.emulation import Emulation
from cosine_p2p import AsyncClient
from cosine_p2p.generation import Generation

TARGET: Final = "zoo:target"
"""The model of the verifier and the target of all drafters."""
SETTLE_S: Final = 0.2
"""A drafter goes on for a moment after its release; the next run should not pay for it."""
Say = Callable[[str], None]


def demo_prompt(domain: str) -> Any:
    """The repository's first prompt of a domain: plain text, or chat messages."""
    prompt = zoo.prompts(domain)[0]
    if prompt.messages:
        return [{"role": message.role, "content": message.content} for message in prompt.messages]
    return prompt.text


async def run_demo(emulation: Emulation, *, max_new_tokens: int, say: Say) -> Report:
    """Start a verifier and every embedded drafter as processes; generate each prompt plainly and with `cosine`."""
    with tempfile.TemporaryDirectory(prefix="cosine-demo-") as folder:
        async with _nodes(emulation, Path(folder), say) as nodes:
            rows = await _rows(nodes[0].maddrs, max_new_tokens, say)
        pacing = PassTiming(
            sum(node.stopped.get("passes", 0) for node in nodes),
            sum(node.stopped.get("late_passes", 0) for node in nodes),
            all(node.stopped for node in nodes),
        )
    return Report(tuple(rows), emulation.describe(), pacing)


@asynccontextmanager
async def _nodes(emulation: Emulation, folder: Path, say: Say) -> AsyncIterator[list[NodeProcess]]:
    """All nodes as processes, ready; the verifier first, which is the others' way in."""
    async with AsyncExitStack() as stack:
        shared = ("--emulate", emulation.name)
        say("Starting the verifier ...")
        verifier = await _start(
            stack, "verifier", ["join", "--role", "verifier", "--model", TARGET, *shared], folder
        )
        await verifier.wait_ready()
        drafters = []
        for name in zoo.names()[1:]:
            say(f"Starting {name} ...")
            arguments = ["join", "--role", "drafter", "--model", f"zoo:{name}", "--target", TARGET, *shared]
            drafters.append(await _start(stack, name, [*arguments, "--initial-peers", verifier.maddrs[0]], folder))
        for drafter in drafters:
            await drafter.wait_ready()
            say(f"{drafter.name} is ready")
        yield [verifier, *drafters]


async def _start(stack: AsyncExitStack, name: str, arguments: list[str], folder: Path) -> NodeProcess:
    node = await NodeProcess.start(name, arguments, folder)
    stack.push_async_callback(node.stop)
    return node


async def _rows(maddrs: list[str], max_new_tokens: int, say: Say) -> list[PromptComparison]:
    rows = []
    async with AsyncClient(maddrs[:1], target=TARGET, dtype="float32") as client:
        for domain in zoo.DOMAINS:
            prompt = demo_prompt(domain)
            done: dict[str, Generation] = {}
            for strategy in ("plain", "cosine"):
                say(f"{domain}: {strategy} ...")
                done[strategy] = await client.generate(prompt, strategy=strategy, max_new_tokens=max_new_tokens)
                await asyncio.sleep(SETTLE_S)
            shown = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            rows.append(PromptComparison(domain, shown, done["plain"], done["cosine"]))
            say(f"{domain}: {rows[-1].speedup:.2f}x, identical: {'yes' if rows[-1].identical else 'NO'}")
    return rows
