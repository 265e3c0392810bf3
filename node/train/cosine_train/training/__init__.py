"""Drafters for any target, trained on its own answers (`zoo train`).

Input: a target and questions. Output: a small model with its card.
"""
