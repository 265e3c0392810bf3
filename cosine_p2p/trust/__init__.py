"""Verdicts about peers, from signed statements and the results of calls. No network."""
