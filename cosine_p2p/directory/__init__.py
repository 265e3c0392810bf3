"""Whom to ask: in come postings of strangers and round trips; out go checked, signed records, best first."""
