"""Files of the state folder: bounded, written whole or not at all, private where they hold a key.

In and out go JSON objects and the key of this node or client.
"""
