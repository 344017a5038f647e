"""The commands, and the run of a comparison in a process of its own."""
