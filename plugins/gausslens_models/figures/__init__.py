"""What the report shows."""
