"""A head: a verifier without weights, whose passes run over a chain of stages."""

import asyncio
import logging
import random
import time
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

from cosine_engine.constraints.grammars import Grammars
from cosine_engine.curve import CostCurve, measure_curve
from cosine_engine.forward.support import context_tokens, refuse_by_config
from cosine_engine.kv_pool import PagePool
from cosine_engine.models.home_model import load_home
from cosine_engine.models.model import MEASURE_S, ModelNames, ServedModel
from cosine_engine.pool_size import USUAL_TOKENS
from cosine_engine.torch.loading import read_config
from cosine_node.chains.checks import ChainChecks
from cosine_node.chains.engine import ChainEngine
from cosine_node.chains.remote_chain import RemoteChain
from cosine_node.chains.runner import ChainRunner, OpenedChain
from cosine_node.chains.search import NoChain
from cosine_node.chains.source import ChainNeeds, ChainSource
from cosine_node.chains.spare_chain import SpareChain
from cosine_node.passes.runner import in_ending_thread
from cosine_node.serving.announced_node import claim, join, observing
from cosine_node.serving.fetched_model import open_model, sharing
from cosine_node.serving.node import VerifierNode
from cosine_node.serving.node_options import NetworkOptions, NodeOptions
from cosine_node.stages.operations import ChainLost
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


async def run_head(network: NetworkOptions, options: NodeOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a head until `stop` is set. It waits for stages that hold all layers.

    Raises `UsageError` for an unusable model, identity or address, and `PeerLost` if initial peers do not answer.
    """
    async with AsyncExitStack() as stack:
        claimed, gate = claim(network, network.identity_file, stack)
        joining = partial(join, network, claimed, gate, emit, stack, stop)
        opened = await open_model(options.source.model, options.source.target, joining, emit, stop)
        if opened is None:
            return
        names = await asyncio.to_thread(opened.names)
        needs, most_tokens = needs_of(names, requests=options.max_requests)
        load = partial(load_home, emit=emit, measure_s=MEASURE_S)
        home = await in_ending_thread(load, options.home) if options.home else None
        joined = opened.joined or await joining()
        if joined is None:
            return
        weights = await sharing(opened.folder) if options.shares_weights else None
        source = ChainSource(joined.transport, joined.directory(), needs)
        stack.push_async_callback(source.close)
        checks = ChainChecks(source, chance=random.random, now_s=asyncio.get_running_loop().time)
        stack.push_async_callback(checks.close)
        stack.callback(asyncio.ensure_future(source.run()).cancel)
        grammars = await asyncio.to_thread(Grammars.of, opened.folder)
        while (chain := await _next_chain(source, emit, stop)) is not None:
            emit("measuring", {"model": names.model_name})
            assert source.pool_tokens is not None and source.numerics is not None
            new_pool = partial(PagePool, tokens=source.pool_tokens)
            engine = ChainEngine(
                chain,
                new_pool(),
                vocab_tokens=needs.vocab_tokens,
                context_tokens=most_tokens,
                numerics=source.numerics,
            )
            try:
                # The measured cost includes transfers.
                curve = await in_ending_thread(measure_curve, engine, clock=time.perf_counter, budget_s=MEASURE_S)
            except ChainLost as lost:
                # Lost while it was measured; the next search excludes the stage at fault.
                LOG.warning("%s", lost)
                continue
            chains = HeadChains(source, curve, checks)
            runner = ChainRunner(engine, chains, new_pool=new_pool, opened=chains.opened(chain), grammars=grammars)
            if options.keeps_spare_warm:
                chains.spare = SpareChain(
                    source,
                    engine,
                    checks,
                    tokens_under_way=partial(getattr, runner, "tokens_under_way"),
                    token_bytes=needs.token_bytes,
                )
            served = ServedModel(engine=engine, curve=curve, names=names)
            node = VerifierNode(joined, served, options, home=home, chain=runner)
            node.weights = weights
            source.here = partial(getattr, node, "coordinate")
            with observing(network, [node]):
                await _live(node, chains, emit, stop)


class HeadChains:
    """Implements `cosine_node.chains.runner.ChainOpener`. `is_none_left` is set once no chain was found."""

    def __init__(self, source: ChainSource, curve: CostCurve, checks: ChainChecks) -> None:
        """`curve` is the measured cost of a pass over the whole chain."""
        self._source = source
        self._checks = checks
        self._curve = curve
        self.spare: SpareChain | None = None
        """The spare chain, if one is kept warm."""
        self.is_none_left = asyncio.Event()

    async def open(self, *, first_sequence: int) -> OpenedChain:
        warm = None if self.spare is None else self.spare.take()
        if warm is not None:
            if await self._source.go_on_over(warm):
                return self.opened(warm.chain, engine=warm.engine)
            await warm.close()
        try:
            return self.opened(await self._source.open(first_sequence=first_sequence))
        except NoChain:
            self.is_none_left.set()
            raise

    def doubt(self) -> bool:
        return self._source.doubt()

    def opened(self, chain: RemoteChain, *, engine: ChainEngine | None = None) -> OpenedChain:
        """Return the source's latest chain, with the cost of passes at each stage; a warm one has an `engine`.

        Each stage reports the cost of one token; the measured cost of further tokens is divided in proportion.
        """
        assert self._source.found is not None
        alone_s = [stage.pass_s for stage in self._source.found.stages]
        more = [(tokens, seconds - self._curve.seconds(1)) for tokens, seconds in self._curve.points]
        curves = []
        for stage_s in alone_s:
            share = stage_s / sum(alone_s) if sum(alone_s) else 1 / len(alone_s)
            curves.append(CostCurve(tuple((tokens, stage_s + share * more_s) for tokens, more_s in more)))
        return OpenedChain(
            chain,
            tuple(curves),
            applies_constraints=chain.applies_constraints,
            stages=chain.stages,
            witness=self._checks.begin(chain, None if engine is None else engine.witness),
            engine=engine,
            token_s=partial(self._source.token_s, self._source.found),
            why_not_judge=lambda: self._checks.why_not_judge,
        )


async def _live(node: VerifierNode, chains: HeadChains, emit: Emit, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, or a chain was lost and no other was found."""
    ending = asyncio.Event()

    async def wait(for_event: asyncio.Event) -> None:
        await for_event.wait()
        ending.set()

    waiting = [asyncio.ensure_future(wait(each)) for each in (stop, chains.is_none_left)]
    if chains.spare is not None:
        waiting.append(asyncio.ensure_future(chains.spare.run()))
    try:
        await node.live(emit, ending)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _next_chain(source: ChainSource, emit: Emit, stop: asyncio.Event) -> RemoteChain | None:
    """Wait for a chain; return None if `stop` is set before."""
    told = ""
    while not stop.is_set():
        try:
            return await source.open(first_sequence=0)
        except NoChain as error:
            if str(error) != told:
                told = str(error)
                emit("waiting", {"said": told})
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await stop.wait()
    return None
