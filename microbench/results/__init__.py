"""Types of a run, the run file, comparison of two runs."""
