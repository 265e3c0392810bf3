"""The page: chat, the swarm, proofs, and how to join, in a browser.

The files that `web/` is built into, and what they ask of the gateway that serves them, come from here: surveys and
generations in, JSON and server-sent events out.
"""
