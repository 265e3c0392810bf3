"""Anthropic's messages: bodies of `/v1/messages` in, and their blocks, events and errors out."""
