"""Finds what keeps a machine from joining: facts gathered by thin shells, each judged by a pure function."""
