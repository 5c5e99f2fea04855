"""Engines: running models, taking activations on the way, and the proof that these are right."""
