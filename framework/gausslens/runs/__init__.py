"""A run: a study becomes a plan, the plan becomes results."""
