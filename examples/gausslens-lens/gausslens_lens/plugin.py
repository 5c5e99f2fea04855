"""What this plugin offers."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

api_version = 2

PATCHING = Analysis(
    name="lens.patching",
    version=2,
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
LOGIT = Analysis(
    name="lens.logit",
    version=1,
    shape="forward",
    summary="The logit lens: streams on the way read as if the model ended there.",
    analysis="gausslens_lens.logit:LogitLens",
)
DIRECT = Analysis(
    name="lens.direct",
    version=1,
    shape="forward",
    summary="Direct logit attribution: what each head, MLP and the embedding give to a logit.",
    parameters="gausslens_lens.parameters:DirectParameters",
    analysis="gausslens_lens.direct:Direct",
    texts=True,
)
TUNED = Analysis(
    name="lens.tuned",
    version=1,
    shape="stream",
    summary="The tuned lens: an affine map of each layer's stream, trained to predict what the model does.",
    parameters="gausslens_lens.parameters:TunedParameters",
    analysis="gausslens_lens.tuned:Tuned",
    random=True,
    all_layers=True,
)
TUNED_LOSS = Analysis(
    name="lens.tuned-loss",
    version=1,
    shape="forward",
    summary="How near the tuned lens and the logit lens are to the model, on other prompts.",
    parameters="gausslens_lens.parameters:TunedLossParameters",
    analysis="gausslens_lens.tuned:TunedLoss",
    names=("of",),
)
SECTION = ReportSection(
    name="lens",
    version=1,
    summary="Maps of patching and attribution, and lenses by depth.",
    section="gausslens_lens.section:section",
    analyses=("lens.patching", "lens.attribution", "lens.direct", "lens.logit", "lens.tuned-loss"),
    order=70,
)


@hookimpl
def analyses() -> list[Analysis]:
    """The measurements."""
    return [PATCHING, ATTRIBUTION, AGREEMENT, LOGIT, DIRECT, TUNED, TUNED_LOSS]


@hookimpl
def report_sections() -> list[ReportSection]:
    """Their part of the page."""
    return [SECTION]
