"""The page of a store: one HTML file that needs nothing else, drawn from the figures that report sections return.

It reads the store and nothing else.
"""

from .page import write as write
from .sections import Undrawn as Undrawn
