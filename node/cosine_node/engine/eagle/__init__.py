"""Draft heads: small layers that draft by what a target's own layers made of the text.

In come a published EAGLE-3 head's folder, or the multi-token-prediction layer of the target's own checkpoint, and a
target on PyTorch; out comes an engine that a verifier drafts with.
"""
