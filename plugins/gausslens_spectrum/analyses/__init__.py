"""What edits do to a model."""
