"""Finds what keeps a machine from joining.

Facts are gathered by thin shells, those that may hang or crash in child processes; pure functions judge each.
"""
