"""Builders that tests share: runs, cases, networks, devices."""
