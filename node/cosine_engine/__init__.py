"""Forward passes over packed token trees: the interface, the engines behind it, and the files that they load."""
