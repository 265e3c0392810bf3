"""A head: a verifier without weights, whose passes run over a chain of stages."""

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

from cosine_engine.constraints.grammars import Grammars
from cosine_engine.curve import measure_curve
from cosine_engine.forward.support import context_tokens, refuse_by_config
from cosine_engine.models.home_model import load_home
from cosine_engine.models.served import MEASURE_S, ModelNames
from cosine_engine.pool_size import USUAL_TOKENS
from cosine_engine.torch.loading import read_config
from cosine_node.chains.chain import StageChain
from cosine_node.chains.checks import ChainChecks
from cosine_node.chains.engine import StagedEngine
from cosine_node.chains.finder import ChainFinder
from cosine_node.chains.known_stages import ChainNeeds
from cosine_node.chains.links import StageLinks
from cosine_node.chains.search import NoChain
from cosine_node.passes.runner import in_ending_thread
from cosine_node.serving.engine_passes import EnginePasses
from cosine_node.serving.fetched_model import open_model, sharing
from cosine_node.serving.joining import entering
from cosine_node.serving.node import RunningNode, observing
from cosine_node.serving.options import HeadOptions, NetworkOptions
from cosine_node.serving.verify_role import VerifyRole
from cosine_node.stages.frames import ChainLost
from cosine_p2p.transport.patience import end_all
from cosine_terminal.events import Emit

LOG = logging.getLogger(__name__)
WAIT_S: Final = 2.0
"""The pause between searches for a chain."""


def needs_of(names: ModelNames, *, requests: int) -> tuple[ChainNeeds, int]:
    """Return the required size of a chain and the context of a model, in tokens. Raises `UsageError`.

    A chain has room for `requests` requests of usual length, and for one that fills the context.
    """
    config = read_config(str(names.folder))
    refuse_by_config(config)
    text, most_tokens = config.get_text_config(), context_tokens(config)
    usual_tokens = min(most_tokens, USUAL_TOKENS)
    needs = ChainNeeds(
        target_digest=names.facts.digest(),
        layers=text.num_hidden_layers,
        vocab_tokens=text.vocab_size,
        pool_tokens=max(requests * usual_tokens, most_tokens),
        least_pool_tokens=usual_tokens,
        # 16 bits per value, as in most models.
        token_bytes=2 * text.hidden_size,
    )
    return needs, most_tokens


async def run_head(network: NetworkOptions, options: HeadOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a head until `stop` is set. It waits for stages that hold all layers, also after it has lost its chain.

    Raises `UsageError` for an unusable model, identity or address, and `PeerLost` if initial peers do not answer.
    """
    async with AsyncExitStack() as stack:
        entrance = await stack.enter_async_context(entering(network, emit, stop))
        opened = await open_model(options.source.model, options.source.target, entrance)
        if opened is None:
            return
        names = await asyncio.to_thread(opened.names)
        needs, most_tokens = needs_of(names, requests=options.max_requests)
        grammars = await asyncio.to_thread(Grammars.of, opened.folder)
        load = partial(load_home, emit=emit, measure_s=MEASURE_S, grammars=grammars)
        home = await in_ending_thread(load, options.home) if options.home else None
        if (joined := await entrance.join()) is None:
            return
        weights = await sharing(opened.folder) if options.shares_weights else None
        here = joined.surroundings.vivaldi
        finder = ChainFinder(joined.transport, joined.directory, needs, here=lambda: here.coordinate)
        stack.push_async_callback(finder.close)
        checks = ChainChecks(finder)
        stack.push_async_callback(checks.close)
        stack.callback(asyncio.ensure_future(finder.run()).cancel)
        while (links := await _next_chain(finder, emit, stop)) is not None:
            emit("measuring", {"model": names.model_name})
            engine = StagedEngine(links, context_tokens=most_tokens, grammars=grammars)
            try:
                # The measured cost includes transfers.
                curve = await in_ending_thread(measure_curve, engine, clock=time.perf_counter, budget_s=MEASURE_S)
            except ChainLost as lost:
                # Lost while it was measured; the next search excludes the stage at fault.
                LOG.warning("%s", lost)
                continue
            chain = StageChain(engine, finder, curve=curve, checks=checks)
            passes = EnginePasses.over_stages(chain, curve.at_share(options.share))
            role = VerifyRole(joined, names, passes, options, home=home, chain=chain, weights=weights)
            node = RunningNode(joined, role)
            with observing(network, [node]):
                await _run(node, chain, emit, stop)


async def _run(node: RunningNode, chain: StageChain, emit: Emit, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, or a chain was lost and no other was found."""
    ending = asyncio.Event()

    async def end_after(event: asyncio.Event) -> None:
        await event.wait()
        ending.set()

    waiting = [asyncio.ensure_future(end_after(each)) for each in (stop, chain.is_none_left)]
    try:
        await node.run(emit, ending)
    finally:
        await end_all(waiting)


async def _next_chain(finder: ChainFinder, emit: Emit, stop: asyncio.Event) -> StageLinks | None:
    """Wait for a chain; return None if `stop` is set before."""
    told = ""
    while not stop.is_set():
        try:
            return await finder.open(first_sequence=0)
        except NoChain as error:
            if str(error) != told:
                told = str(error)
                emit("waiting", {"said": told})
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await stop.wait()
    return None
