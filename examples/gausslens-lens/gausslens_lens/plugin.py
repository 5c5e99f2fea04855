"""What this plugin offers."""

from __future__ import annotations

from gausslens import Analysis, hookimpl

api_version = 2

PATCHING = Analysis(
    name="lens.patching",
    version=1,
    shape="forward",
    summary="What each part of one run does to the answer of another, beside random heads.",
    parameters="gausslens_lens.parameters:PatchingParameters",
    analysis="gausslens_lens.patching:Patching",
    random=True,
    texts=True,
)
ATTRIBUTION = Analysis(
    name="lens.attribution",
    version=1,
    shape="forward",
    summary="The same to first order: gradient of the metric times what patching would change.",
    parameters="gausslens_lens.parameters:AttributionParameters",
    analysis="gausslens_lens.attribution:Attribution",
    random=True,
    texts=True,
)
AGREEMENT = Analysis(
    name="lens.agreement",
    version=1,
    shape="derived",
    summary="Rank correlation of attribution patching with patching.",
    parameters="gausslens_lens.parameters:AgreementParameters",
    analysis="gausslens_lens.attribution:Agreement",
    names=("patching", "attribution"),
)


@hookimpl
def analyses() -> list[Analysis]:
    """The measurements."""
    return [PATCHING, ATTRIBUTION, AGREEMENT]
