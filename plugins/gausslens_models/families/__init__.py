"""Families of models as data, and which tensors and facts a checkpoint of one has."""
