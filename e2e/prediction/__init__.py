"""Predicts a training step from its ops, each benchmarked alone."""
