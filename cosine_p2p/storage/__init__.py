"""What is kept: files of the state folder, bounded, written whole or not at all, private where they hold a key; and
the bounded map of what is remembered of others.

In and out go JSON objects, noted values, and the key of this node or client.
"""
