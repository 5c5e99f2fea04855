"""What the report shows of the analyses."""
