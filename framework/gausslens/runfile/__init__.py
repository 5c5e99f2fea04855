"""Run files: strict YAML in, a Study out, or every mistake at once with its place."""
