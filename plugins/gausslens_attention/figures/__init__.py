"""What the report shows, one module for each section."""
