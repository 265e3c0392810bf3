"""The output of commands to terminals and logs, progress, exit codes and signals."""
