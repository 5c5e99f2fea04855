"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

SPECTRUM = Analysis(
    name="bilinear.spectrum",
    version=2,
    shape="weights",
    summary="Squared singular values of each layer's weight matrices beside the Marchenko-Pastur law of their shape.",
    parameters="gausslens_bilinear.parameters:SpectrumParameters",
    analysis="gausslens_bilinear.spectrum:Spectrum",
    exchangeable=("head", "kv_head"),
    estimate="gausslens_bilinear.spectrum:estimate",
)
ALIGNMENT = Analysis(
    name="bilinear.alignment",
    version=1,
    shape="weights",
    summary="What each head's W_Q W_K^T and W_V W_O match with what, and how heads compose across layers.",
    parameters="gausslens_bilinear.parameters:AlignmentParameters",
    analysis="gausslens_bilinear.alignment:Alignment",
    exchangeable=("head",),
    estimate="gausslens_bilinear.alignment:estimate",
)
LOGITS = Analysis(
    name="bilinear.logits",
    version=2,
    shape="stream",
    summary="Moments of attention's logits, content form and true score, predicted from Gaussians and measured.",
    parameters="gausslens_bilinear.parameters:LogitsParameters",
    analysis="gausslens_bilinear.logits:Logits",
    row_blocks=True,
    exchangeable=("head",),
    estimate="gausslens_bilinear.logits:estimate",
)
ROLES = Analysis(
    name="bilinear.head-roles",
    version=1,
    shape="stream",
    summary="Previous-token, duplicate-token, induction and positional scores of each head on tokens that repeat.",
    parameters="gausslens_bilinear.parameters:HeadRolesParameters",
    analysis="gausslens_bilinear.roles:HeadRoles",
    row_blocks=True,
    exchangeable=("head",),
    prompts={"source": "repeated-random", "prompts": 32, "length": 32},
    estimate="gausslens_bilinear.roles:estimate",
)
ANGLES = Analysis(
    name="bilinear.angles",
    version=2,
    shape="forward",
    summary="How far the angle between two tokens' vectors reaches the score and the attention between them.",
    parameters="gausslens_bilinear.parameters:AnglesParameters",
    analysis="gausslens_bilinear.angles:Angles",
    exchangeable=("head",),
    estimate="gausslens_bilinear.angles:estimate",
)
NOISE = Analysis(
    name="bilinear.noise",
    version=1,
    shape="weights",
    summary="Random matrices of given sizes, or of those of the model's own, beside the Marchenko-Pastur law.",
    parameters="gausslens_bilinear.parameters:NoiseParameters",
    analysis="gausslens_bilinear.noise:Noise",
    random=True,
    estimate="gausslens_bilinear.noise:estimate",
)
SLERP = Analysis(
    name="bilinear.slerp",
    version=1,
    shape="forward",
    summary="Divergence of softmax along the arc between two vectors, random ones and embeddings, beside a cosine.",
    parameters="gausslens_bilinear.parameters:SlerpParameters",
    analysis="gausslens_bilinear.arcs:Slerp",
    random=True,
    prompts={"source": "text", "text": ["No prompt is looked at."]},
    estimate="gausslens_bilinear.arcs:estimate",
)
SECTIONS = [
    ReportSection(
        name="bilinear.spectrum",
        version=2,
        summary="What the weights' spectra hold beyond the law of random matrices of the same shape.",
        section="gausslens_bilinear.section:spectrum",
        analyses=("bilinear.spectrum",),
        order=30,
    ),
    ReportSection(
        name="bilinear.alignment",
        version=1,
        summary="What each head's circuits match, and which heads compose.",
        section="gausslens_bilinear.sections:alignment",
        analyses=("bilinear.alignment",),
        order=31,
    ),
    ReportSection(
        name="bilinear.logits",
        version=1,
        summary="Attention's logits predicted from Gaussians, beside what was measured.",
        section="gausslens_bilinear.sections:logits",
        analyses=("bilinear.logits",),
        order=32,
    ),
    ReportSection(
        name="bilinear.angles",
        version=2,
        summary="How far angles between tokens reach scores and attention.",
        section="gausslens_bilinear.sections:angles",
        analyses=("bilinear.angles",),
        order=33,
    ),
    ReportSection(
        name="bilinear.head-roles",
        version=1,
        summary="What each head attends to on tokens that repeat.",
        section="gausslens_bilinear.sections:roles",
        analyses=("bilinear.head-roles",),
        order=34,
    ),
    ReportSection(
        name="bilinear.noise",
        version=1,
        summary="Spectra of random matrices beside the law of their shape.",
        section="gausslens_bilinear.chance:noise",
        analyses=("bilinear.noise",),
        order=35,
    ),
    ReportSection(
        name="bilinear.slerp",
        version=1,
        summary="Divergence along arcs, and how far it is from a cosine.",
        section="gausslens_bilinear.chance:slerp",
        analyses=("bilinear.slerp",),
        order=36,
    ),
]


@hookimpl
def analyses() -> list[Analysis]:
    """What this plugin computes."""
    return [SPECTRUM, ALIGNMENT, LOGITS, ANGLES, ROLES, NOISE, SLERP]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return SECTIONS
