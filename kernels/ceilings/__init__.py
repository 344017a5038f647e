"""Kernels that reach a device's ceilings: they only multiply, only move bytes, or do nothing."""
