"""Constraints of texts: compiled after a trial in a separate process, and applied after a path of tokens.

From the constraint of a request and the tokens of its output they compute masks over the vocabulary, and the tokens
that must follow.
"""
