"""Drafters for any target, trained on its own answers (`zoo train`).

In come a target and questions; out comes a small model with its card.
"""
