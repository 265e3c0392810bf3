"""Whole swarms in one process, in virtual time."""
