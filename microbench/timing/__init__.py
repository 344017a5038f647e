"""Timers, interleaving, and statistics of samples."""
