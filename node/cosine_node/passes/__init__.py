"""Passes of a model that several requests share: run in a thread, timed, divided fairly, emulated.

In come rows of several requests; out go results a row and the measured time.
"""
