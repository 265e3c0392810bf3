"""The drafter: follows commits, drafts ahead, signs what it sends."""
