"""The speed by the clock on separate cores, so that no role takes time from another: the verifier has its own core.

Drafters, the bootstrap node and the client share a second core. Questions are of every common kind. A way counts
with the best of its runs of a question, since disturbances on such a machine only make a run slower.
"""

import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from cosine_engine.processor import processor_name
from cosine_lab.emulation.cores import Cores, on_core
from cosine_lab.experiments.experiment import JsonRow, Say, grouped
from cosine_lab.experiments.here import (
    PLAIN,
    Asked,
    Contest,
    HereOptions,
    mismatches,
    questions_of,
    run_contest,
    speed_of,
    tokens_by_origin,
)
from cosine_lab.experiments.kinds import questions_of as questions_of_kinds
from cosine_node.demo.race import OPTIONS, RacedWay
from cosine_node.demo.swarm import Cast, NodeProcess
from cosine_p2p import AsyncClient
from cosine_p2p.request.options import GenerationOptions

COPYING: Final = "copying"
COSINE: Final = RacedWay.COSINE.value
HOME: Final = "home drafter"
"""The verifier's own drafter alone."""
BOTH: Final = "cosine, home drafter"
VERIFIER_OPTIONS: Final[Mapping[str, str]] = {"engine": "torch", "threads": "1"}
"""The default options of the verifier."""


def options_on_cores(*, quick: bool) -> HereOptions:
    """The requests. With 70 ms a pass a question takes about 24 s in three ways, and 37 s in five.

    Including the start of the nodes, about a minute, the experiment ends within 20 minutes, and a quick run within
    4.
    """
    few = HereOptions(temperatures=(0.0, 0.8), prompts=14, tokens=32, repeats=1, minutes=3.0)
    return few if quick else HereOptions(temperatures=(0.0, 0.8), prompts=43, tokens=32, repeats=2, minutes=17.0)


def ways_of(verifier: str, at_home: str | None) -> dict[str, GenerationOptions]:
    """Return the ways that take turns, by name; `at_home` is the verifier with its own drafter, by peer id."""
    # An audit would take time from the verifier of the next request.
    plain: GenerationOptions = {**OPTIONS[RacedWay.PLAIN], "verifier": verifier, "audit": 0.0}
    alone: GenerationOptions = {**plain, **OPTIONS[RacedWay.COPYING]}
    drafted: GenerationOptions = {**plain, **OPTIONS[RacedWay.COSINE]}
    ways = {PLAIN: plain, COPYING: alone, COSINE: drafted}
    return ways | (
        {HOME: {**alone, "verifier": at_home}, BOTH: {**drafted, "verifier": at_home}} if at_home else {}
    )


async def run_on_cores(
    cast: Cast, home: str | None, cores: Cores, options: HereOptions, *, rows: list[JsonRow], say: Say
) -> JsonRow:
    """Start a family's nodes, each on its core, and measure them; return one JSON object. `rows` are as in `run`.

    With `home`, the model of a drafter, a second verifier holds it; only one of both is used at a time. Raises
    `NodeDied`, and as a generation does.
    """
    kinds = [Asked.of(question) for question in questions_of_kinds(cast.family)[: options.prompts]]
    asked = questions_of(options) if options.prompts_from else kinds
    with tempfile.TemporaryDirectory(prefix="cosine-bench-") as folder, on_core(cores.others):
        async with swarm_on_cores(cast, home, cores, Path(folder), say) as (peer, verifiers):
            contest = Contest(
                what="Seconds a token of each way, in turns, by the clock; the verifier has a core of its own, "
                "drafters and client share another one, and nothing is emulated.",
                ways=ways_of(*verifiers),
                typical=min,
                findings_of=findings_of,
            )
            result = await run_contest(
                lambda _: AsyncClient([peer], memory=False, target=cast.target),
                contest,
                asked,
                options,
                rows=rows,
                say=say,
            )
    result["setup"] |= {
        "processor": processor_name(),
        "verifier_options": list(cast.verifier_options),
        "drafter_models": list(cast.drafters),
        "home_drafter": home,
    }
    return result


@asynccontextmanager
async def swarm_on_cores(
    cast: Cast, home: str | None, cores: Cores, folder: Path, say: Say
) -> AsyncIterator[tuple[str, tuple[str, str | None]]]:
    """Run the nodes, a process each; yield an address and the arguments of `ways_of`. Raises `NodeDied`."""
    async with AsyncExitStack() as running:

        async def start(name: str, core: int, *arguments: str) -> NodeProcess:
            # One after the other, since each starting node measures its speed on its core.
            with on_core(core):
                node = await NodeProcess.start(name, arguments, folder)
            running.push_async_callback(node.stop)
            await node.wait_ready()
            say(f"{name}: ready on core {core}")
            return node

        bootstrap = await start("bootstrap", cores.others, "bootstrap")
        joining = ("join", "--target", cast.target, "--initial-peers", bootstrap.maddrs[0])
        serving = (*joining, "--role", "verifier", *cast.verifier_options)
        verifier = await start("verifier", cores.verifier, *serving, "--draft-model", "none")
        at_home = await start(HOME, cores.verifier, *serving, "--draft-model", home) if home else None
        for number, model in enumerate(cast.drafters, 1):
            drafting = ("--role", "drafter", "--threads", "1", "--model", model)
            await start(f"drafter {number}", cores.others, *joining, *drafting)
        yield bootstrap.maddrs[0], (verifier.ready[0]["peer_id"], at_home.ready[0]["peer_id"] if at_home else None)


def findings_of(rows: Sequence[JsonRow], seed: int) -> dict[str, Any]:
    """Return for each temperature and way the speed over all questions, and the origins of tokens."""
    others = [way for way in rows[0]["times_plain"] if way != PLAIN]
    ways, tokens = list[JsonRow](), list[JsonRow]()
    for (temperature,), own in grouped(rows, "temperature").items():
        for way in others:
            ratios = [row["times_plain"][way] for row in own]
            slower = {"least": min(ratios), "slower_than_plain": sum(ratio < 1 for ratio in ratios)}
            ways.append({"temperature": temperature, **speed_of(own, way, seed=seed), **slower})
            tokens.append({"temperature": temperature, "way": way, **token_shares(own, way)})
    return {
        "ways": ways,
        "kinds_asked": len({row["kind"] for row in rows}),
        "token_shares": with_all_columns(tokens),
        "mismatches": mismatches(rows),
        "near_ties": sum(row["near_ties"] for row in rows),
        "compared": len(rows),
    }


def token_shares(rows: Sequence[JsonRow], way: str) -> dict[str, float]:
    """Return the share of each origin in the tokens of a way, the largest first."""
    counts = tokens_by_origin(rows, way)
    return {name: tokens / sum(counts.values()) for name, tokens in counts.items()}


def with_all_columns(entries: Sequence[JsonRow]) -> list[JsonRow]:
    """Return the same with all fields of any entry, 0 where missing."""
    names = dict.fromkeys(name for entry in entries for name in entry)
    return [{name: entry.get(name, 0.0) for name in names} for entry in entries]
