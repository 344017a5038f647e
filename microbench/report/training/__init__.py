"""What was trained, as a person reads it: tables, charts and a verdict, from the run alone."""
