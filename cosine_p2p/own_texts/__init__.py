"""The user's own texts, from which the client drafts: folders in, continuations of what a request writes out.

An index over their tokens finds the places that match a request's last tokens. Only drafts leave the machine.
"""
