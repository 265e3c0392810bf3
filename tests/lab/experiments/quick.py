"""Results of experiments in their smallest form, each made once."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, get_type_hints


def silent(sentence: str) -> None:
    del sentence


@cache
def quick_result(module: str) -> dict[str, Any]:
    """Return the result of a module of `cosine_lab.experiments`, run in one process."""
    run = import_module(f"cosine_lab.experiments.{module}").run
    options = get_type_hints(run)["options"].quick()
    return {
        "name": module,
        "command": f"cosine-node bench {module}",
        **run(replace(options, processes=1), say=silent),
    }
