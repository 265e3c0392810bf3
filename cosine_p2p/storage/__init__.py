"""Files of the state folder, bounded and written whole, and the bounded map of what is remembered of others.

In and out go JSON objects, noted values, and the key of this node or client.
"""
