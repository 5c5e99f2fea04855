"""Spectrum surgery: what the singular values and vectors of attention's matrices do, by changing them."""
