"""What the report shows of each analysis."""
