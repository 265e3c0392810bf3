"""Pure decisions about drafts: the live tree, weighing, calibrating and fusing drafts, and how far they pay."""
