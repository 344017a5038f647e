"""The scripts of examples/diagnose: each has one planted cause, which `diagnose` must name first.

`python -m tests.scenarios --out DIR` runs them all, and measures how often the diagnosis is right.
"""
