"""Attention matrices that somebody already has, as a model whose maps are given."""
