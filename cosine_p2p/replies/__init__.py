"""A chat model's reply: its reasoning, its words and its calls of tools, told apart as they come.

In comes text with its special tokens, and the chat template; out go parts.
"""
