"""The ATen calls of a step, recorded without running it."""
