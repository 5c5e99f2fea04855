"""Where descriptors name the base of parameter models: ``"gausslens.parameters:NoParameters"``."""

from .contract.parameters import NoParameters as NoParameters
from .contract.parameters import Parameters as Parameters
