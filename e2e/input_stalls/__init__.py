"""Stalls by difference: a step's parts measured apart, and what they make together."""
