"""Types of trainings and loader runs, and their form in a run file."""
