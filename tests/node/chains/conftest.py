"""Chains are tried with the models that stages are."""

from tests.node.stages.conftest import _one_thread, folder, halves

__all__ = ["_one_thread", "folder", "halves"]
