"""What a run file may choose."""

from __future__ import annotations

from pydantic import Field

from gausslens import Parameters


class FirstTokenParameters(Parameters):
    """Parameters of sinks.first-token."""

    after: int = Field(default=1, ge=1, description="The first query position that counts.")
