"""What the report shows of attention approximation. Means leave out what is missing."""

from functools import partial

from gausslens import figures

averaged = partial(figures.averaged, skip_missing=True)
