"""What this plugin offers."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

api_version = 2

FIRST_TOKEN = Analysis(
    name="sinks.first-token",
    version=1,
    shape="stream",
    summary="Mean attention on the first token, and how often it gets the most, for each head.",
    parameters="gausslens_sinks.parameters:FirstTokenParameters",
    analysis="gausslens_sinks.first_token:FirstToken",
    row_blocks=True,
    exchangeable=("head",),
)
SECTION = ReportSection(
    name="sinks",
    version=1,
    summary="Maps of the attention on the first token.",
    section="gausslens_sinks.section:section",
    analyses=("sinks.first-token",),
    order=60,
)


@hookimpl
def analyses() -> list[Analysis]:
    """The measurement."""
    return [FIRST_TOKEN]


@hookimpl
def report_sections() -> list[ReportSection]:
    """Its part of the page."""
    return [SECTION]
