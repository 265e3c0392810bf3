"""Anthropic's messages API: `/v1/messages`."""
