"""Pure decisions about who drafts for a request: ours and its rivals behind one interface."""
