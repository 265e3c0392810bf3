"""Forward passes over packed token trees: interface, PyTorch engine, scripted twin."""
