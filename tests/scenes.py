"""Tests that are coroutines: each is run on a loop of its own, in real or in virtual time."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from cosine_lab.emulation.virtual_loop import run_virtual

Scene = Callable[..., Coroutine[Any, Any, None]]
Test = Callable[..., None]


def as_test(run: Callable[..., None], *, given: int = 0, shared: Sequence[str] = ()) -> Callable[[Scene], Test]:
    """Make a test of a coroutine function whose first `given` arguments come from `run`, the others from pytest.

    `run` is called with the scene, and with those arguments of pytest that `shared` names.
    """

    def decorate(scene: Scene) -> Test:
        parameters = list(inspect.signature(scene).parameters.values())[given:]
        names = [parameter.name for parameter in parameters]

        def test(**values: Any) -> None:
            run(
                lambda *own: scene(*own, **{name: values[name] for name in names}),
                **{name: values[name] for name in shared},
            )

        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(test, name, getattr(scene, name))
        extra = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in shared if name not in names]
        vars(test)["__signature__"] = inspect.Signature(parameters + extra)
        vars(test)["pytestmark"] = list(getattr(scene, "pytestmark", []))
        return test

    return decorate


def _run_virtual(scene: Callable[[], Any]) -> None:
    run_virtual(scene())


in_real_time: Final = as_test(lambda scene: asyncio.run(asyncio.wait_for(scene(), 120)))
in_virtual_time: Final = as_test(_run_virtual)
