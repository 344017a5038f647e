"""Tests the diagnosis on known answers: plant a condition, measure, see if it is diagnosed."""
