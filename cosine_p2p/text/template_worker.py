"""A process that renders chat templates, which are strangers' programs. `chat_template.py` starts and bounds it.

Run by its path, so that it imports nothing of ours: the folder of jinja2 is its argument. It reads one JSON line a
question from stdin, `{"template", "values", "max_characters"}`, and answers `{"text"}` or `{"error"}`.
"""

import json
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

MAX_MEMORY_BYTES: Final = 1 << 30
"""Address space, of which Python takes some ten MiB; a template that doubles a text meets it in time."""
MAX_CPU_S: Final = 60
"""Where the process that asks is gone, nobody else ends a loop without an end. For each question."""
MAX_ERROR: Final = 300
"""Bounds what a template says of its failure; characters."""


def confine() -> None:
    """Bound what this process may use; where the system has no such limits, the one that asks still ends it."""
    with suppress(ImportError):
        import resource

        for limit, most in (("RLIMIT_AS", MAX_MEMORY_BYTES), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
            with suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, limit), (most, most))


def allow_more_time() -> None:
    """Let the next question take `MAX_CPU_S`."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + MAX_CPU_S, most_s))


@lru_cache(maxsize=4)
def compiled(template: str) -> Any:
    """A template in jinja2's sandbox, with the settings of transformers."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(template)


def answer(question: dict[str, Any]) -> dict[str, str]:
    """The text of a template, or why there is none."""
    pieces, left = [], question["max_characters"]
    try:
        for piece in compiled(question["template"]).generate(**question["values"]):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                return {"error": f"it writes more than {question['max_characters']} characters"}
        text = "".join(pieces)
        text.encode()  # half a character is no text
    except MemoryError:
        return {"error": "it takes too much memory"}
    except Exception as error:  # a template is a stranger's program and may raise anything
        return {"error": str(error)[:MAX_ERROR]}
    return {"text": text}


def main() -> None:
    """Answer until stdin ends."""
    sys.path.append(sys.argv[1])
    compiled("")
    confine()
    for line in sys.stdin:
        allow_more_time()
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
