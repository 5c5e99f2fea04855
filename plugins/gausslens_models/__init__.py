"""Loaders, weights, capture engines, prompt sources and the built-in model."""
