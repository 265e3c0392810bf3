"""Drafts in other tokens than the target's, whose text is converted to the target's tokens."""
