"""The analyses, one module for each; curves has what those that give error against budget share."""
