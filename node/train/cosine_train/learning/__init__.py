"""Drafters that learn from the texts they drafted for, where clients allow it, in their idle time."""
