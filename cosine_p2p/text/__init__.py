"""Tokenizers, chat templates, prompts, and the identity of models."""
