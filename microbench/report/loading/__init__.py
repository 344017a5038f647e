"""What is said of loaders, and of recipes and loaders together."""
