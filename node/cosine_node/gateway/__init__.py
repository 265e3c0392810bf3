"""The gateway: requests for text in, generations of one shared swarm client out.

Here is what all its APIs have in common, and OpenAI's chats and completions.
"""
