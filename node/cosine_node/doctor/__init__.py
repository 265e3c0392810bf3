"""Finds what keeps a machine from joining: `join`'s own steps, ended before anything is announced, and the machine.

`examine` runs `Examination` in a child process, which may crash or hang, and passes on its findings as they come.
"""
