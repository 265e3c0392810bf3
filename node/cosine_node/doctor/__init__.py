"""Finds what keeps a machine from joining: runs the steps of `join` up to the announcement.

`examine` runs `Examination` in a child process, which may crash or hang, and reports its findings immediately.
"""
