"""Bilinear statistics and random-matrix laws.

Usable alone, on arrays: the modules of ``gausslens_bilinear.maths``, as ``form`` (moments of x^T C y), ``fit`` (the
bulk of a spectrum), ``tail``, ``circuits``, ``softmax``, ``slerp``, ``spheres`` and ``traces``. The laws of random
matrices and singular values are in ``gausslens.maths.laws`` and ``gausslens.maths.spectra``.
"""
