"""One training loop, its steps timed."""
