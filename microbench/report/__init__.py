"""What a person sees: screens, charts, tables. The only package that imports rich."""
