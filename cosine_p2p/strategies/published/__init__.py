"""Published designs to compare ours with, each as its paper has it and with its own router and constants."""
