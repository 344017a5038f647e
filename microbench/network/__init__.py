"""The GEMMs and convolutions of a network's training step, found without running it."""
