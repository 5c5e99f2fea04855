"""From a plan to results: steps computed twin by twin, in passes that they share, with errors over prompts."""
