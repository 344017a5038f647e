"""Predicts times from measured peaks: physical terms, fitted coefficients, held-out error."""
