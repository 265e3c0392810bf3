"""Loads a whole model, and that of a verifier's own drafter, for a node."""

import time
from dataclasses import replace
from functools import partial

from cosine_engine.base import Engine
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.models.home_model import HomeModel, load_with_home
from cosine_engine.models.served import MEASURE_S, WARM_UP_S, ServedModel, load_served
from cosine_engine.models.unloading import ModelMemory
from cosine_node.passes.runner import in_ending_thread
from cosine_node.serving.options import DraftOptions, VerifyOptions
from cosine_protocol.errors import UsageError
from cosine_terminal.events import Emit

WholeModelOptions = DraftOptions | VerifyOptions
Loaded = tuple[ServedModel, HomeModel | None]
"""A node's model, and that of a verifier's own drafter."""


async def load_node(options: WholeModelOptions, emit: Emit) -> Loaded:
    """Load and measure a node's models; their memory can be given back if the options say so.

    Raises `UsageError`.
    """
    began_s = time.monotonic()
    served, home = await in_ending_thread(load_models, options, emit)
    if options.unload_after_s is None:
        return served, home
    return returnable(options, served, home, emit, load_s=time.monotonic() - began_s)


def load_models(
    options: WholeModelOptions, emit: Emit, *, measure_s: float | None = None, grammars: Grammars | None = None
) -> Loaded:
    """Load and measure a node's models. Blocks. Raises `UsageError`.

    `grammars` are the constraints of engines that these replace.
    """
    if measure_s is None:
        measure_s = MEASURE_S if options.emulated_curve is None else WARM_UP_S
    if isinstance(options, VerifyOptions) and options.home is not None:
        return load_with_home(options.source, options.home, emit, measure_s=measure_s, grammars=grammars)
    return load_served(options.source, options.role, emit, measure_s=measure_s, grammars=grammars), None


def returnable(
    options: WholeModelOptions, served: ServedModel, home: HomeModel | None, emit: Emit, *, load_s: float
) -> Loaded:
    """Return the models with engines whose memory can be given back. The first load took `load_s`."""
    names, after_s, grammars = served.names, options.unload_after_s, served.engine.grammars
    assert after_s is not None

    async def load_again() -> list[Engine]:
        # The speed is known, and open sequences have their constraints compiled.
        load = partial(load_models, options, emit, measure_s=WARM_UP_S, grammars=grammars)
        again, home_again = await in_ending_thread(load)
        if again.names != names:
            raise UsageError("its files have changed")
        return [again.engine] if home_again is None else [again.engine, home_again.engine]

    engines = [served.engine] if home is None else [served.engine, home.engine]
    memory = ModelMemory(engines, load_again, model=names.model_name, load_s=load_s, after_s=after_s, emit=emit)
    engine = memory.engines[0]
    if home is not None:
        home = replace(home, engine=memory.engines[1], target=None if home.target is None else engine)
    return replace(served, engine=engine, memory=memory), home
