"""How things look: themes, tones, and how names, times and sizes are written.

In come values and text of strangers; out goes text that a terminal can show.
"""
