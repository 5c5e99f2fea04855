"""The analyses, each in a module of its name."""
