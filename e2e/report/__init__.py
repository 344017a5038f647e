"""Screens, tables and charts of trainings, predictions, ledgers and loaders."""
