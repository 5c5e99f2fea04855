"""Bilinear statistics and random-matrix laws.

Usable alone, on arrays: ``form`` (moments of x^T C y), ``laws`` and ``fit`` (spectra of noise, of products of noise,
and the bulk of a spectrum), ``tail``, ``singular``, ``circuits``, ``softmax``, ``slerp``, ``spheres``, ``traces``.
"""
