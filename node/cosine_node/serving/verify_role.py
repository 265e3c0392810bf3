"""A verifier: holds a target and generates with it, optionally with a drafter in the same process."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cosine_engine.models.home_model import HomeModel
from cosine_engine.models.served import ModelNames
from cosine_node.chains.chain import StageChain
from cosine_node.passes.runner import PacedRunner, Runner, ThreadRunner
from cosine_node.serving.engine_passes import EnginePasses
from cosine_node.serving.fetched_model import sharing
from cosine_node.serving.joining import JoinedNetwork, entering
from cosine_node.serving.node import NodeRole, RunningNode, run_together
from cosine_node.serving.options import NetworkOptions, VerifyOptions
from cosine_node.serving.whole_model import load_node
from cosine_node.serving.work import VerifyWork
from cosine_node.verifier.admission import VerifierConfig
from cosine_node.verifier.coordination import RequestCoordinator
from cosine_node.verifier.home_drafter import HomeDrafter
from cosine_node.verifier.service import VerifierService
from cosine_node.weights.service import WeightsService
from cosine_p2p.transport.base import StreamHandler
from cosine_protocol.audit import AUDIT
from cosine_protocol.records import Role
from cosine_protocol.verify import VERIFY
from cosine_terminal.events import Emit

if TYPE_CHECKING:
    from cosine_node.metrics.node import ObservedPart


async def run_verifier(network: NetworkOptions, options: VerifyOptions, emit: Emit, stop: asyncio.Event) -> None:
    """Run a verifier until `stop` is set; then it drains.

    Raises `UsageError` for an unusable model, identity or address, and `PeerLost` if initial peers do not answer.
    """
    async with entering(network, emit, stop) as entrance:
        served, home = await load_node(options, emit)
        if stop.is_set() or (joined := await entrance.join()) is None:
            return
        weights = await sharing(served.names.folder) if options.shares_weights else None
        passes = EnginePasses.of_model(served, options)
        role = VerifyRole(joined, served.names, passes, options, home=home, weights=weights)
        await run_together(network, [RunningNode(joined, role)], emit, stop)


def home_drafter(home: HomeModel, options: VerifyOptions, *, beside: ThreadRunner | None) -> HomeDrafter:
    """A verifier's own drafter, in the thread of its passes.

    Over stages there is no such thread: it drafts all the time, and messages must not wait for it.
    """
    share, emulation = options.share, options.emulation
    curve = home.curve.at_share(share)
    runner: Runner = ThreadRunner(home.engine, beside=beside, gives_way=beside is None, share=share)
    if emulation is not None and emulation.has_device:
        curve = emulation.curve(Role.DRAFTER)
        runner = PacedRunner(runner, curve)
    return HomeDrafter(engine=home.engine, runner=runner, curve=curve, target=home.target)


class VerifyRole(NodeRole):
    """A verifier. With a `chain` its passes run over stages."""

    role = Role.VERIFIER
    service: VerifierService

    def __init__(
        self,
        joined: JoinedNetwork,
        names: ModelNames,
        passes: EnginePasses,
        options: VerifyOptions,
        *,
        home: HomeModel | None = None,
        chain: StageChain | None = None,
        weights: WeightsService | None = None,
    ) -> None:
        self.names = names
        self.emulation = options.emulation
        self.speed = passes.speed
        self.facts = {"numerics": passes.engine.numerics}
        self.weights = weights
        self._options = options
        self._passes = passes
        self._home = None if home is None else home_drafter(home, options, beside=passes.thread)
        coordinator = None
        if options.max_coordinated:
            coordinator = RequestCoordinator(
                joined.transport,
                most_requests=options.max_coordinated,
                stages=0 if chain is None else len(chain.stages),
            )
        self.service = VerifierService(
            passes.served(self._wait_for_work),
            config=VerifierConfig(
                target_digest=names.facts.digest(),
                tokenizer_digest=names.facts.tokenizer_digest,
                max_requests=options.max_requests,
                shares_prefixes=options.shares_prefixes,
            ),
            identity=joined.identity,
            home=self._home,
            coordinator=coordinator,
            chain=chain,
            knows=lambda peer_id: peer_id in joined.surroundings.known,
        )

    async def _wait_for_work(self, work: asyncio.Event) -> None:
        await self._passes.wait(work, self.service.progress)

    def handlers(self) -> dict[str, StreamHandler]:
        return {VERIFY: self.service.handle, AUDIT: self.service.audits.handle}

    def record(self) -> dict[str, Any]:
        curve, stages = self._passes.curve, self.service.stages
        cost = None if stages else round(1000 * curve.seconds(4) / curve.seconds(1))
        return self._passes.record(self._options.max_requests) | {
            "stages": stages or None,
            "four_tokens_permille": cost,
        }

    def work(self) -> VerifyWork:
        return VerifyWork.of(self.service)

    def observed(self) -> "Sequence[ObservedPart]":
        from cosine_node.metrics.node import OF_REQUESTS, OF_VERIFIERS, RequestPlaces

        served = RequestPlaces(self.service, self._passes.engine, self._options.max_requests)
        return ((OF_REQUESTS, served), (OF_VERIFIERS, self.service))

    def stopped_fields(self) -> dict[str, object]:
        return self._passes.stopped_fields(self._options)

    def close(self) -> None:
        self._passes.runner.close()
        if self._home is not None:
            self._home.close()
