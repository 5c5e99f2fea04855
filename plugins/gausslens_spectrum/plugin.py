"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, Edit, ReportSection, hookimpl

_VALUES = "gausslens_spectrum.parameters:touched_by_values"

SCALE = Edit(
    name="spectrum.scale",
    version=1,
    summary="Multiply all singular values by alpha; on W_Q and W_K it multiplies attention scores by alpha squared.",
    parameters="gausslens_spectrum.parameters:ScaleParameters",
    edit="gausslens_spectrum.edits:scale",
    touches=_VALUES,
)
KEEP = Edit(
    name="spectrum.keep",
    version=1,
    summary="Keep the top or bottom k singular values, or as many as hold a share of the energy; drop the others.",
    parameters="gausslens_spectrum.parameters:EndParameters",
    edit="gausslens_spectrum.edits:keep",
    touches=_VALUES,
)
DROP = Edit(
    name="spectrum.drop",
    version=1,
    summary="Drop the top or bottom k singular values, or as many as hold a share of the energy.",
    parameters="gausslens_spectrum.parameters:EndParameters",
    edit="gausslens_spectrum.edits:drop",
    touches=_VALUES,
)
KEEP_RANDOM = Edit(
    name="spectrum.keep-random",
    version=1,
    summary="Keep singular values chosen at random: the control of spectrum.keep.",
    parameters="gausslens_spectrum.parameters:ChoiceParameters",
    edit="gausslens_spectrum.edits:keep_random",
    touches=_VALUES,
    random=True,
)
DROP_RANDOM = Edit(
    name="spectrum.drop-random",
    version=1,
    summary="Drop singular values chosen at random: the control of spectrum.drop.",
    parameters="gausslens_spectrum.parameters:ChoiceParameters",
    edit="gausslens_spectrum.edits:drop_random",
    touches=_VALUES,
    random=True,
)
POWER = Edit(
    name="spectrum.power",
    version=1,
    summary="Raise the singular values to a power: above 1 the spectrum gets steeper, below 1 flatter.",
    parameters="gausslens_spectrum.parameters:PowerParameters",
    edit="gausslens_spectrum.edits:power",
    touches=_VALUES,
)
FLATTEN = Edit(
    name="spectrum.flatten",
    version=1,
    summary="Move the singular values towards their root mean square; at 1 all are equal.",
    parameters="gausslens_spectrum.parameters:FlattenParameters",
    edit="gausslens_spectrum.edits:flatten",
    touches=_VALUES,
)
LAW = Edit(
    name="spectrum.law",
    version=2,
    summary="Replace the singular values by the quantiles of a law, as that of noise, and keep the vectors.",
    parameters="gausslens_spectrum.parameters:LawParameters",
    edit="gausslens_spectrum.edits:law",
    touches=_VALUES,
)
VECTORS = Edit(
    name="spectrum.vectors",
    version=1,
    summary="Replace the left or right singular vectors, or both, by Haar-random ones and keep the values.",
    parameters="gausslens_spectrum.parameters:VectorParameters",
    edit="gausslens_spectrum.edits:vectors",
    touches="gausslens_spectrum.parameters:touched_by_vectors",
    random=True,
)
GRAFT = Edit(
    name="spectrum.graft",
    version=1,
    summary="Give a layer the singular values of another and keep its own vectors.",
    parameters="gausslens_spectrum.parameters:GraftParameters",
    edit="gausslens_spectrum.edits:graft",
    touches=_VALUES,
    check="gausslens_spectrum.edits:check_graft",
)
EFFECT = Analysis(
    name="spectrum.effect",
    version=1,
    shape="forward",
    summary="What a variant's edits do to what the model predicts, attends to and writes, beside the unedited model.",
    parameters="gausslens_spectrum.parameters:EffectParameters",
    analysis="gausslens_spectrum.analyses.effect:Effect",
    texts=True,
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_spectrum.analyses.effect:estimate",
)
SECTION = ReportSection(
    name="spectrum.effect",
    version=1,
    summary="Loss, attention entropy and generated text of each edited variant, and their curves over swept values.",
    section="gausslens_spectrum.figures.effect:effect",
    question="What does an edit of the spectrum do?",
    analyses=("spectrum.effect",),
    order=40,
)


@hookimpl
def edits() -> list[Edit]:
    """Surgery."""
    return [SCALE, KEEP, DROP, KEEP_RANDOM, DROP_RANDOM, POWER, FLATTEN, LAW, VECTORS, GRAFT]


@hookimpl
def analyses() -> list[Analysis]:
    """What it does to the model."""
    return [EFFECT]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return [SECTION]
