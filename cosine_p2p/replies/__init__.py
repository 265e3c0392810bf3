"""Parsers of chat models' replies: from text with special tokens to reasoning, content and tool calls. Pure."""
