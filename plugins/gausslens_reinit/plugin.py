"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, Edit, ReportSection, hookimpl

_TOUCHES = "gausslens_reinit.parameters:touched"
CONFIG = Edit(
    name="reinit.config",
    version=1,
    summary="Draw layers anew from the model's own initialisation; with embeddings: true all is as before training.",
    parameters="gausslens_reinit.parameters:ConfigParameters",
    edit="gausslens_reinit.edits:from_config",
    touches=_TOUCHES,
    random=True,
    keeps="gausslens_reinit.parameters:config_keeps",
    check="gausslens_reinit.edits:check_initial",
)
GAUSSIAN = Edit(
    name="reinit.gaussian",
    version=1,
    summary="Gaussian noise of each tensor's own mean and variance, exactly, or of a given variance.",
    parameters="gausslens_reinit.parameters:GaussianParameters",
    edit="gausslens_reinit.edits:gaussian",
    touches=_TOUCHES,
    random=True,
    keeps="gausslens_reinit.parameters:gaussian_keeps",
)
XAVIER = Edit(
    name="reinit.xavier",
    version=1,
    summary="Glorot and Bengio's initialisation: variance 2 / (what a matrix reads + what it writes).",
    parameters="gausslens_reinit.parameters:FanParameters",
    edit="gausslens_reinit.edits:xavier",
    touches=_TOUCHES,
    random=True,
)
HE = Edit(
    name="reinit.he",
    version=1,
    summary="He et al.'s initialisation: variance 2 / what a matrix reads.",
    parameters="gausslens_reinit.parameters:FanParameters",
    edit="gausslens_reinit.edits:he",
    touches=_TOUCHES,
    random=True,
)
PERMUTE = Edit(
    name="reinit.permute",
    version=1,
    summary="Shuffle the entries of each tensor: the values stay, their places do not.",
    parameters="gausslens_reinit.parameters:ReinitParameters",
    edit="gausslens_reinit.edits:permute",
    touches=_TOUCHES,
    random=True,
    keeps="gausslens_reinit.parameters:permute_keeps",
)
ROTATE = Edit(
    name="reinit.rotate",
    version=1,
    summary="Turn each matrix at random on both sides: the singular values stay, the vectors do not.",
    parameters="gausslens_reinit.parameters:BlockParameters",
    edit="gausslens_reinit.edits:rotate",
    touches=_TOUCHES,
    random=True,
    keeps="gausslens_reinit.parameters:rotate_keeps",
)
CASCADE = Edit(
    name="reinit.cascade",
    version=1,
    summary="Draw layers anew from the top or the bottom, so many of them, by one of the other schemes.",
    parameters="gausslens_reinit.parameters:CascadeParameters",
    edit="gausslens_reinit.edits:cascade",
    touches=_TOUCHES,
    random=True,
    check="gausslens_reinit.edits:check_initial",
)
IDENTITY = Edit(
    name="reinit.identity",
    version=1,
    summary="Matrices with one value on the diagonal: of the size of those they replace, or a value given.",
    parameters="gausslens_reinit.parameters:IdentityParameters",
    edit="gausslens_reinit.edits:identity",
    touches=_TOUCHES,
)
DIAGONAL = Edit(
    name="reinit.diagonal",
    version=1,
    summary="Random diagonal matrices of the size of those they replace.",
    parameters="gausslens_reinit.parameters:ShapedParameters",
    edit="gausslens_reinit.edits:diagonal",
    touches=_TOUCHES,
    random=True,
)
BAND = Edit(
    name="reinit.band",
    version=1,
    summary="Random matrices that are zero far from the diagonal, of the size of those they replace.",
    parameters="gausslens_reinit.parameters:BandParameters",
    edit="gausslens_reinit.edits:band",
    touches=_TOUCHES,
    random=True,
)
SPARSE = Edit(
    name="reinit.sparse",
    version=1,
    summary="Random matrices of given density, of the size of those they replace.",
    parameters="gausslens_reinit.parameters:SparseParameters",
    edit="gausslens_reinit.edits:sparse",
    touches=_TOUCHES,
    random=True,
)
LOW_RANK = Edit(
    name="reinit.low-rank",
    version=1,
    summary="Random matrices of given rank, of the size of those they replace.",
    parameters="gausslens_reinit.parameters:RankParameters",
    edit="gausslens_reinit.edits:low_rank",
    touches=_TOUCHES,
    random=True,
)
CHECK = Analysis(
    name="reinit.check",
    version=2,
    shape="weights",
    by_layer=True,
    summary="What a variant's matrices keep of the model's own: mean, variance, values, spectrum, places.",
    parameters="gausslens_reinit.parameters:CheckParameters",
    analysis="gausslens_reinit.analyses.check:Check",
)
SECTION = ReportSection(
    name="reinit.check",
    version=1,
    summary="What each null keeps and what it changes.",
    section="gausslens_reinit.figures.check:check",
    question="What do the twins share with the model?",
    analyses=("reinit.check",),
    order=90,
)


@hookimpl
def edits() -> list[Edit]:
    """The nulls."""
    return [CONFIG, GAUSSIAN, XAVIER, HE, PERMUTE, ROTATE, CASCADE, IDENTITY, DIAGONAL, BAND, SPARSE, LOW_RANK]


@hookimpl
def analyses() -> list[Analysis]:
    """What they keep."""
    return [CHECK]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return [SECTION]
