"""Time from measured ceilings: physical terms, fitted coefficients, error on unseen cases."""
