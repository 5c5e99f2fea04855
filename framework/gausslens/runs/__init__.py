"""A run before it computes: a study becomes a plan, its models are opened; what its results are compared by."""
