"""Runs functions that may crash or hang in child processes."""
