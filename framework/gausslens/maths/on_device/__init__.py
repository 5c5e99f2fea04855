"""Reductions of activations where they lie: on a GPU, so that no more than the statistics are copied to the CPU.

Numbers that lie on the CPU are arrays of numpy, and what is computed of them is as it ever was. Numbers on a device are
tensors of torch: they are added up in float64 where the device has it, else in pairs of float32 (``two_floats``).
"""

from .rows import entropy_and_deficit, summed_over_keys
from .vectors import Placed, Vectors, along, of_tokens, placed, samples
from .widths import Values, alike, has_float64, in_double, in_numpy, values_of, wide

__all__ = [
    "Placed",
    "Values",
    "Vectors",
    "alike",
    "along",
    "entropy_and_deficit",
    "has_float64",
    "in_double",
    "in_numpy",
    "of_tokens",
    "placed",
    "samples",
    "summed_over_keys",
    "values_of",
    "wide",
]
