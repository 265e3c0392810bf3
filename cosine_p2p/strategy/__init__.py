"""Who drafts, what is forwarded to the verifier, and how many drafters pay, by measurement.

In come events of one request and the time; out go actions. Pure: no I/O, no clock, no randomness.
"""
