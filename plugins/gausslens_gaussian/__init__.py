"""Gaussian fitting: what flows through a transformer, under Gaussian approximation."""
