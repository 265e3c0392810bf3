"""The packages of each extra of cosine-p2p: missing and broken ones, and how to install them."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from cosine_node.doctor.finding import Finding, failure, fine, warning
from cosine_terminal.packages import EXTRAS, INSTALL

PACKAGES: Final = "packages"


def judge_extras(missing: Mapping[str, Sequence[str]], *, extra: str, needs_node: bool) -> Finding:
    """Judge whether `extra` is installed, which a node needs."""
    whole = ", ".join(extra for extra, names in missing.items() if not names)
    found = f"complete: {whole}" if whole else "only the client is installed"
    if not missing[extra]:
        return fine("extras", found)
    judge = failure if needs_node else warning
    return judge("extras", f"{found}; [{extra}] lacks {', '.join(missing[extra])}", INSTALL[extra])


def look_at_imports(extra: str) -> Iterator[Finding]:
    """Import all packages of an extra."""
    broken, versions = [], []
    for name in EXTRAS[extra]:
        try:
            # hivemind as a node imports it.
            import_module("cosine_p2p.transport.full.library" if name == "hivemind" else name)
            versions.append(f"{name} {version(name.replace('_', '-'))}")
        except PackageNotFoundError:
            # A distribution of another name.
            continue
        except Exception as error:
            # Broad, because a broken package may raise anything.
            broken.append(name)
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            fix = f"Reinstall it: `pip install --force-reinstall {name}`."
            yield failure(PACKAGES, f"{name} is installed but cannot be imported: {reason}", fix)
    if not broken:
        yield fine(PACKAGES, ", ".join(versions))
