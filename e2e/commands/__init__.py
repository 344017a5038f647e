"""What each command does, and the run of a comparison in a process of its own."""
