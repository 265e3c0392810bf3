"""A chat model's reply: in comes text with special tokens, out go reasoning, words and calls of tools."""
