"""Drawings on matplotlib axes, in letters of the size that its settings have: for notebooks and for papers."""
