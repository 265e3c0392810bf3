"""OpenAI's responses: bodies of `/v1/responses` in, and their items and events out.

Nothing is stored: a request brings its whole conversation.
"""
