"""Passes of a model over rows of several requests: run in a thread, timed, divided fairly, emulated."""
