"""Endpoints of many kinds, tried by `cosine audit endpoint`: what it says of each, and how often it errs."""
