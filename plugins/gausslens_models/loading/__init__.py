"""Loaders: from files, hub ids and live modules to a model that has tensors and can run."""
