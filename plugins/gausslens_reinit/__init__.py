"""Random re-initialisation: the nulls."""
