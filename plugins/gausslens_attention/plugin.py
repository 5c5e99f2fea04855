"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

BAND = Analysis(
    name="attention.band",
    version=2,
    shape="stream",
    by_layer=True,
    summary="Each head's pattern beside its nearest band plus sparse error: exact, over widths and budgets.",
    parameters="gausslens_attention.parameters:BandParameters",
    analysis="gausslens_attention.analyses.band:Band",
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.band:estimate",
)
LOWRANK = Analysis(
    name="attention.lowrank",
    version=2,
    shape="stream",
    by_layer=True,
    summary="Each head's pattern beside low-rank maps: the truncated decomposition, random projections, Linformer.",
    parameters="gausslens_attention.parameters:LowRankParameters",
    analysis="gausslens_attention.analyses.lowrank:LowRank",
    random=True,
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.lowrank:estimate",
)
MASKS = Analysis(
    name="attention.masks",
    version=2,
    shape="stream",
    by_layer=True,
    summary="What masks before the softmax leave of each head's pattern: windows, Longformer, BigBird, largest cells.",
    parameters="gausslens_attention.parameters:MaskParameters",
    analysis="gausslens_attention.analyses.masks:Masks",
    random=True,
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.masks:estimate",
)
KERNELS = Analysis(
    name="attention.kernels",
    version=2,
    shape="stream",
    by_layer=True,
    summary="Each head's pattern beside linear attention with its own queries and keys: elu, Taylor, Performer, least "
    "squares.",
    parameters="gausslens_attention.parameters:KernelParameters",
    analysis="gausslens_attention.analyses.kernels:Kernels",
    random=True,
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.kernels:estimate",
)
ROLES = Analysis(
    name="attention.roles",
    version=1,
    shape="stream",
    by_layer=True,
    summary="Which family each head belongs to (a diagonal, a band, rare tokens), by how much, and its map's spectrum.",
    parameters="gausslens_attention.parameters:RolesParameters",
    analysis="gausslens_attention.analyses.roles:Roles",
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.roles:estimate",
)
POOLING = Analysis(
    name="attention.pooling",
    version=3,
    shape="stream",
    by_layer=True,
    summary="Which function of q and k before position (dot, multiplicative, additive) makes a head's scores.",
    parameters="gausslens_attention.parameters:PoolingParameters",
    analysis="gausslens_attention.analyses.pooling:Pooling",
    random=True,
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.pooling:estimate",
)
MEMBERS = Analysis(
    name="attention.members",
    version=1,
    shape="stream",
    by_layer=True,
    summary="Each head's pattern beside the nearest diagonal, band and rare-token members at given widths and windows: "
    "exact, and by random search.",
    parameters="gausslens_attention.parameters:MembersParameters",
    analysis="gausslens_attention.analyses.members:Members",
    random=True,
    exchangeable=("head",),
    estimate="gausslens_attention.analyses.members:estimate",
)
SWAP = Analysis(
    name="attention.swap",
    version=2,
    shape="forward",
    summary="What the model loses when heads run on an approximation of their attention, each alone or all at once.",
    parameters="gausslens_attention.parameters:SwapParameters",
    analysis="gausslens_attention.analyses.swap:Swap",
    random=True,
    exchangeable=("head",),
    crossed=True,
    estimate="gausslens_attention.analyses.swap:estimate",
)
NEAREST = ReportSection(
    name="attention.members",
    version=1,
    summary="The distance of each head's map to the nearest members of the three sets, exact, drawn and published.",
    section="gausslens_attention.figures.members:members",
    question="How near are diagonals, bands and rare tokens?",
    analyses=("attention.members",),
    order=63,
)
CURVES = ReportSection(
    name="attention.curves",
    version=1,
    summary="Error against budget of each approximation, beside the oracle and the trivial ones.",
    section="gausslens_attention.figures.curves:curves",
    question="How well do cheaper forms of attention do?",
    analyses=("attention.band", "attention.lowrank", "attention.masks", "attention.kernels"),
    order=62,
)
MAP = ReportSection(
    name="attention.roles",
    version=1,
    summary="The family of each head as a map of the model, with its parameters.",
    section="gausslens_attention.figures.roles:roles",
    question="What kind of head is each?",
    analyses=("attention.roles",),
    order=60,
)
SCORES = ReportSection(
    name="attention.pooling",
    version=1,
    summary="How much of the heads' scores each scoring function explains.",
    section="gausslens_attention.figures.pooling:pooling",
    question="Which scoring function do heads use?",
    analyses=("attention.pooling",),
    order=61,
)
LOSSES = ReportSection(
    name="attention.swap",
    version=1,
    summary="What the model loses by each approximation, and which heads bear it.",
    section="gausslens_attention.figures.swap:swap",
    question="What does the model lose with cheaper attention?",
    analyses=("attention.swap",),
    order=64,
)


@hookimpl
def analyses() -> list[Analysis]:
    """What attention approximation computes."""
    return [BAND, LOWRANK, MASKS, KERNELS, ROLES, POOLING, MEMBERS, SWAP]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return [MAP, SCORES, CURVES, NEAREST, LOSSES]
