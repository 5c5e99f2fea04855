"""Formulas of bilinear forms, circuits, softmax and spheres: pure numpy, usable with no model and no host."""
