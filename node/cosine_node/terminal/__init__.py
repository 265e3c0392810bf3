"""What commands write to a terminal or a log, and how they wait and end.

In come events and errors; out go lines, JSON, progress and exit codes.
"""
