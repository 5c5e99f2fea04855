"""What this plugin computes: a module for each analysis, named like it."""
