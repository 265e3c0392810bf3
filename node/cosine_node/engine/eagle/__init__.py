"""Draft heads in the manner of EAGLE-3: small layers that draft by what a target's own layers made of the text.

In come a published head's folder and a target on PyTorch; out comes an engine that a verifier drafts with.
"""
