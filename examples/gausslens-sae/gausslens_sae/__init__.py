"""Sparse autoencoders: trained on a stream of activations, measured on another, and put in the place of a site."""
