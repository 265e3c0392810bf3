"""Who drafts, what is forwarded, how many pay: events and the time come in, actions go out. Pure."""
