"""Constraints of texts: compiled, tried first in a process of its own, and what they allow after a path of tokens.

In come the constraint of a request and the tokens of its output; out go masks over the vocabulary, and the tokens
that must follow.
"""
