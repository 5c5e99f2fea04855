"""Run files: strict YAML in, a Study out, or every mistake at once with its place.

``read`` goes through it in this order: text, nodes, settings, the host's own keys, and each plugin's parameters.
"""

from .problems import Problem as Problem
from .problems import RunFileErrors as RunFileErrors
from .read import read as read
from .read import read_model as read_model
from .read import read_variant as read_variant
