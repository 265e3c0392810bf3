"""Drafts that are written in other tokens than the target's: their text becomes its tokens.

In come a text and what follows it by another model or server; out go tokens of the target.
"""
