"""Commands run in this process, as in the tests of the others."""

from tests.node.cli.conftest import run

__all__ = ["run"]
