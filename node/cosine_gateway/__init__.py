"""The gateway: an HTTP server that answers requests for text by one shared swarm client.

This folder has the parts that all its APIs share, and OpenAI's chats and completions.
"""
