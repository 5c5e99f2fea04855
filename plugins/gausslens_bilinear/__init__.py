"""Bilinear statistics and random-matrix laws."""
