"""Pure decisions about drafts: weighing drafters, calibrating their confidence, fusing, draft length."""
