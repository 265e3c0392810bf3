"""Tests and scenes that are coroutines: each is run on a loop of its own, in real or in virtual time."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from cosine_lab.emulation.virtual_loop import run_virtual

Scene = Callable[..., Coroutine[Any, Any, None]]
Test = Callable[..., None]
_P = ParamSpec("_P")
_T = TypeVar("_T")


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


def in_real_time(scene: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    """Make a function of a coroutine function, which is cancelled after two minutes."""

    @wraps(scene)
    def run(*values: _P.args, **named: _P.kwargs) -> _T:
        return asyncio.run(asyncio.wait_for(scene(*values, **named), 120))

    return run


def in_virtual_time(scene: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    @wraps(scene)
    def run(*values: _P.args, **named: _P.kwargs) -> _T:
        return run_virtual(scene(*values, **named))

    return run
