"""The configuration file: it can be read, and every name in it means something."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from cosine_node.doctor.finding import Finding, failure, fine, warning


def judge_configuration(file: Path, *, is_named: bool, unknown: Sequence[str]) -> Finding:
    """Judge a configuration file, which has to be there if the user named it.

    `unknown` are the names in the file that no command has.
    """
    what = "configuration"
    try:
        tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if is_named:
            return failure(what, f"there is no file {file}", "Correct --config, or drop it to use no file.")
        return fine(what, f"no {file}; options come from the command line and the environment")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        return failure(what, f"{file} cannot be read: {reason}", "Correct it, or name another with --config.")
    if unknown:
        fix = f"Correct or remove it in {file}; `cosine-node COMMAND --help` lists the options."
        return warning(what, f"{', '.join(unknown)} means nothing to any command", fix)
    return fine(what, f"{file} is read")
