"""The products that a network's training step is made of, found without running it."""
