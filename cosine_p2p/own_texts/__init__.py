"""Drafts from the user's own texts: folders are indexed by tokens, and continuations of the output are looked up.

Only drafts leave the machine.
"""
