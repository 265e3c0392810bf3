"""A process that renders chat templates, which are untrusted programs. `template_process.py` bounds it.

It is run by its path, without imports of this project; its argument is the folder of jinja2. It reads requests from
stdin, one JSON line each, `{"template", "values", "now", "max_characters"}`, and answers `{"text"}` or `{"error"}`.
Templates have the environment of transformers 5.24 (`utils/chat_template_utils.py`).
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import cache, lru_cache
from typing import Any, Final

MAX_MEMORY_BYTES: Final = 1 << 30  # Address space; Python takes some ten MiB.
MAX_CPU_S: Final = 60  # Per request: ends an endless loop when the parent has died.
MAX_ERROR: Final = 300  # Maximum length of a template's error, in characters.


def confine() -> None:
    """Limit the resources of this process, if the system supports it."""
    with suppress(ImportError):
        import resource

        for limit, most in (("RLIMIT_AS", MAX_MEMORY_BYTES), ("RLIMIT_FSIZE", 0), ("RLIMIT_CORE", 0)):
            with suppress(AttributeError, ValueError, OSError):
                resource.setrlimit(getattr(resource, limit), (most, most))


def allow_more_time() -> None:
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        _, most_s = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used_s) + MAX_CPU_S, most_s))


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter of this name; jinja2's writes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Dictionaries:
    """The global `dict` of templates: creates dictionaries, but gives no access to classes."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


@cache
def environment() -> Any:
    """Return jinja2's sandbox with the settings, globals and tags that chat templates expect."""
    # Importable only after `main` has added their folder.
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.ext import Extension, LoopControlExtension
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """The tag `generation`, which marks assistant texts for training: only its body is rendered."""

        tags = {"generation"}  # noqa: RUF012 -- jinja2 declares it so

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # A call, and so a separate scope for assignments, as in transformers.
            return nodes.CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

        def written(self, caller: Callable[[], str]) -> str:
            return caller()

    class PlainNamespace(Namespace):
        def __init__(*given: Any, **named: Any) -> None:
            # As in jinja2, so that a template may use an attribute `self`.
            self, values = given[0], dict(*given[1:], **named)
            for name in values:
                PlainNamespace.check(name)
            Namespace.__init__(self, values)

        def __setitem__(self, name: str, value: Any) -> None:
            PlainNamespace.check(name)
            super().__setitem__(name, value)

        @staticmethod
        def check(name: Any) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError(f"a namespace takes no name that begins with an underscore, as {name!r} does")

    def raise_exception(message: Any) -> None:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, LoopControlExtension]
    )
    made.filters["tojson"] = tojson
    made.globals |= {"raise_exception": raise_exception, "dict": Dictionaries(), "namespace": PlainNamespace}
    return made


@lru_cache(maxsize=8)
def compiled(template: str) -> Any:
    return environment().from_string(template)


def answer(question: dict[str, Any]) -> dict[str, str]:
    pieces, left = [], question["max_characters"]
    values = {"strftime_now": datetime.fromisoformat(question["now"]).strftime, **question["values"]}
    try:
        for piece in compiled(question["template"]).generate(values):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                return {"error": f"it writes more than {question['max_characters']} characters"}
        text = "".join(pieces)
        text.encode()  # Raises for a lone surrogate.
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
    # From here on the time counts for a template.
    sys.stdout.write("\n")
    sys.stdout.flush()
    for line in sys.stdin:
        allow_more_time()
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
