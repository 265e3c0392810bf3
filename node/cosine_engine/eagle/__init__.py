"""Draft heads: small layers that draft from the activations of a target's layers.

A published EAGLE-3 head's folder, or the multi-token-prediction layer of the target's checkpoint, and a target on
PyTorch become an engine that a verifier drafts with.
"""
