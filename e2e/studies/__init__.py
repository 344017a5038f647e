"""Studies: published experiments, and a user's own, as TOML files that one command runs."""
