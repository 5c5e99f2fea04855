"""What this plugin offers."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

TRAIN = Analysis(
    name="sae.train",
    version=1,
    shape="stream",
    summary="A TopK autoencoder of a site, trained on the stream of its vectors.",
    parameters="gausslens_sae.parameters:TrainParameters",
    analysis="gausslens_sae.train:Train",
    estimate="gausslens_sae.train:estimate",
    random=True,
)
FEATURES = Analysis(
    name="sae.features",
    version=1,
    shape="stream",
    summary="Variance explained, densities, dead features and top tokens of an autoencoder.",
    parameters="gausslens_sae.parameters:FeaturesParameters",
    analysis="gausslens_sae.features:Features",
    texts=True,
    names=("of",),
)
LOSS = Analysis(
    name="sae.loss",
    version=1,
    shape="forward",
    summary="Loss recovered where the model sees an autoencoder's reconstruction.",
    parameters="gausslens_sae.parameters:LossParameters",
    analysis="gausslens_sae.loss:Loss",
    names=("of",),
)
SECTION = ReportSection(
    name="sae",
    version=1,
    summary="Autoencoders: what they explain, how often their features fire, and at which tokens.",
    section="gausslens_sae.section:section",
    analyses=("sae.train", "sae.features", "sae.loss"),
    order=65,
)


@hookimpl
def analyses() -> list[Analysis]:
    """Training, and what is measured of it."""
    return [TRAIN, FEATURES, LOSS]


@hookimpl
def report_sections() -> list[ReportSection]:
    """Their part of the page."""
    return [SECTION]
