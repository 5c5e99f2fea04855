"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

SPECTRUM = Analysis(
    name="bilinear.spectrum",
    version=3,
    shape="weights",
    by_layer=True,
    summary="Squared singular values of each layer's weight matrices beside the Marchenko-Pastur law of their shape.",
    parameters="gausslens_bilinear.parameters:SpectrumParameters",
    analysis="gausslens_bilinear.analyses.spectrum:Spectrum",
    exchangeable=("head", "kv_head"),
    differences="also",
    estimate="gausslens_bilinear.analyses.spectrum:estimate",
)
DIFFERENCE = Analysis(
    name="bilinear.difference",
    version=1,
    shape="weights",
    by_layer=True,
    summary="What the difference of two models' weights has in common with the one that is taken away.",
    parameters="gausslens_bilinear.parameters:DifferenceParameters",
    analysis="gausslens_bilinear.analyses.difference:WeightDifference",
    exchangeable=("head", "kv_head"),
    differences="only",
    estimate="gausslens_bilinear.analyses.difference:estimate",
)
ALIGNMENT = Analysis(
    name="bilinear.alignment",
    version=2,
    shape="weights",
    by_layer=True,
    summary="What each head's W_Q W_K^T and W_V W_O match with what, and how heads compose across layers.",
    parameters="gausslens_bilinear.parameters:AlignmentParameters",
    analysis="gausslens_bilinear.analyses.alignment:Alignment",
    exchangeable=("head",),
    estimate="gausslens_bilinear.analyses.alignment:estimate",
)
LOGITS = Analysis(
    name="bilinear.logits",
    version=3,
    shape="stream",
    by_layer=True,
    summary="Moments of attention's logits, content form and true score, predicted from Gaussians and measured.",
    parameters="gausslens_bilinear.parameters:LogitsParameters",
    analysis="gausslens_bilinear.analyses.logits:Logits",
    row_blocks=True,
    exchangeable=("head",),
    estimate="gausslens_bilinear.analyses.logits:estimate",
)
ROLES = Analysis(
    name="bilinear.head-roles",
    version=1,
    shape="stream",
    by_layer=True,
    summary="Previous-token, duplicate-token, induction and positional scores of each head on tokens that repeat.",
    parameters="gausslens_bilinear.parameters:HeadRolesParameters",
    analysis="gausslens_bilinear.analyses.head_roles:HeadRoles",
    row_blocks=True,
    exchangeable=("head",),
    prompts={"source": "repeated-random", "prompts": 32, "length": 32},
    estimate="gausslens_bilinear.analyses.head_roles:estimate",
)
ANGLES = Analysis(
    name="bilinear.angles",
    version=3,
    shape="forward",
    summary="How far the angle between two tokens' vectors reaches the score and the attention between them.",
    parameters="gausslens_bilinear.parameters:AnglesParameters",
    analysis="gausslens_bilinear.analyses.angles:Angles",
    texts=True,
    exchangeable=("head",),
    estimate="gausslens_bilinear.analyses.angles:estimate",
)
NOISE = Analysis(
    name="bilinear.noise",
    version=1,
    shape="weights",
    summary="Random matrices of given sizes, or of those of the model's own, beside the Marchenko-Pastur law.",
    parameters="gausslens_bilinear.parameters:NoiseParameters",
    analysis="gausslens_bilinear.analyses.noise:Noise",
    random=True,
    differences="also",
    estimate="gausslens_bilinear.analyses.noise:estimate",
)
SLERP = Analysis(
    name="bilinear.slerp",
    version=1,
    shape="forward",
    summary="Divergence of softmax along the arc between two vectors, random ones and embeddings, beside a cosine.",
    parameters="gausslens_bilinear.parameters:SlerpParameters",
    analysis="gausslens_bilinear.analyses.slerp:Slerp",
    random=True,
    crossed=True,
    prompts={"source": "text", "text": ["No prompt is looked at."]},
    estimate="gausslens_bilinear.analyses.slerp:estimate",
)
ENERGY = Analysis(
    name="bilinear.energy",
    version=1,
    shape="forward",
    summary="Whether what a head writes is a step down the energy of its queries, and by how much it lowers it.",
    parameters="gausslens_bilinear.parameters:EnergyParameters",
    analysis="gausslens_bilinear.analyses.energy:Energy",
    random=True,
    exchangeable=("head",),
    estimate="gausslens_bilinear.analyses.energy:estimate",
)
SECTIONS = [
    ReportSection(
        name="bilinear.spectrum",
        version=2,
        summary="What the weights' spectra hold beyond the law of random matrices of the same shape.",
        section="gausslens_bilinear.figures.spectrum:spectrum",
        question="What do the weights hold beyond noise?",
        analyses=("bilinear.spectrum",),
        order=30,
    ),
    ReportSection(
        name="bilinear.difference",
        version=1,
        summary="How much a difference of weights holds, in how many directions, and which of them the base has.",
        section="gausslens_bilinear.figures.difference:difference",
        question="What did training add to the weights?",
        analyses=("bilinear.difference",),
        order=30,
    ),
    ReportSection(
        name="bilinear.alignment",
        version=1,
        summary="What each head's circuits match, and which heads compose.",
        section="gausslens_bilinear.figures.alignment:alignment",
        question="What do circuits of heads match, and which compose?",
        analyses=("bilinear.alignment",),
        order=31,
    ),
    ReportSection(
        name="bilinear.logits",
        version=1,
        summary="Attention's logits predicted from Gaussians, beside what was measured.",
        section="gausslens_bilinear.figures.logits:logits",
        question="Do Gaussians predict attention's logits?",
        analyses=("bilinear.logits",),
        order=32,
    ),
    ReportSection(
        name="bilinear.angles",
        version=2,
        summary="How far angles between tokens reach scores and attention.",
        section="gausslens_bilinear.figures.angles:angles",
        question="How far do angles between tokens decide attention?",
        analyses=("bilinear.angles",),
        order=33,
    ),
    ReportSection(
        name="bilinear.head-roles",
        version=1,
        summary="What each head attends to on tokens that repeat.",
        section="gausslens_bilinear.figures.head_roles:head_roles",
        question="What does each head look for in tokens that repeat?",
        analyses=("bilinear.head-roles",),
        order=34,
    ),
    ReportSection(
        name="bilinear.noise",
        version=1,
        summary="Spectra of random matrices beside the law of their shape.",
        section="gausslens_bilinear.figures.noise:noise",
        question="Do random matrices follow their law?",
        analyses=("bilinear.noise",),
        order=35,
    ),
    ReportSection(
        name="bilinear.slerp",
        version=1,
        summary="Divergence along arcs, and how far it is from a cosine.",
        section="gausslens_bilinear.figures.slerp:slerp",
        question="How does softmax move along an arc?",
        analyses=("bilinear.slerp",),
        order=36,
    ),
    ReportSection(
        name="bilinear.energy",
        version=1,
        summary="What heads write beside the descent of their energies.",
        section="gausslens_bilinear.figures.energy:energy",
        question="Is attention a step down an energy?",
        analyses=("bilinear.energy",),
        order=37,
    ),
]


@hookimpl
def analyses() -> list[Analysis]:
    """What this plugin computes."""
    return [SPECTRUM, DIFFERENCE, ALIGNMENT, LOGITS, ANGLES, ROLES, NOISE, SLERP, ENERGY]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return SECTIONS
