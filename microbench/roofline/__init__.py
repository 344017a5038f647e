"""Ceilings, what limits a case, and a model of its time."""
