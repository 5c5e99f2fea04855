"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

MOMENTS = Analysis(
    name="gaussian.moments",
    version=2,
    shape="stream",
    by_layer=True,
    summary="Mean, covariance, spectrum, entropy and length of what flows through a site, by layer and head, and how "
    "Gaussian it is.",
    parameters="gausslens_gaussian.parameters:MomentsParameters",
    analysis="gausslens_gaussian.analyses.moments:Moments",
    exchangeable=("head", "kv_head"),
    estimate="gausslens_gaussian.analyses.moments:estimate",
)
JOINT = Analysis(
    name="gaussian.joint",
    version=2,
    shape="stream",
    by_layer=True,
    summary="Positions of a prompt as one Gaussian: entropies, mutual information of each pair and its decay, bigrams.",
    parameters="gausslens_gaussian.parameters:JointParameters",
    analysis="gausslens_gaussian.analyses.joint:Joint",
    texts=True,
    random=True,
    exchangeable=("head", "kv_head"),
    estimate="gausslens_gaussian.analyses.joint:estimate",
)
PROPAGATE = Analysis(
    name="gaussian.propagate",
    version=2,
    shape="forward",
    summary="Fitted Gaussians pushed through W_V and through attention: covariance, entropy and mutual information "
    "predicted and measured.",
    parameters="gausslens_gaussian.parameters:PropagateParameters",
    analysis="gausslens_gaussian.analyses.propagate:Propagate",
    random=True,
    exchangeable=("head", "kv_head"),
    estimate="gausslens_gaussian.analyses.propagate:estimate",
)
COLLAPSE = Analysis(
    name="gaussian.collapse",
    version=1,
    shape="forward",
    summary="Whether attention makes tokens alike: entropy deficit, contraction and rate of collapse, with the "
    "residual stream and without it.",
    parameters="gausslens_gaussian.parameters:CollapseParameters",
    analysis="gausslens_gaussian.analyses.collapse:Collapse",
    random=True,
    exchangeable=("head",),
    estimate="gausslens_gaussian.analyses.collapse:estimate",
)
COMPARE = Analysis(
    name="gaussian.compare",
    version=3,
    shape="derived",
    scope="run",
    summary="Divergences and distances between the Gaussians of two variants: plain, corrected for the number of "
    "vectors, and of scale and shape apart.",
    parameters="gausslens_gaussian.parameters:CompareParameters",
    analysis="gausslens_gaussian.analyses.compare:Compare",
    random=True,
)
BETWEEN_LAYERS = Analysis(
    name="gaussian.between-layers",
    version=2,
    shape="derived",
    summary="The same divergences and distances between the Gaussians of one variant's layers, or of two sites.",
    parameters="gausslens_gaussian.parameters:BetweenLayersParameters",
    analysis="gausslens_gaussian.analyses.compare:BetweenLayers",
    random=True,
)
SECTIONS = [
    ReportSection(
        name="gaussian.moments",
        version=2,
        summary="Effective rank, anisotropy, entropy, length and kurtosis by layer; spectra of the covariances.",
        section="gausslens_gaussian.figures.moments:moments",
        question="How wide and how Gaussian is what flows?",
        analyses=("gaussian.moments",),
        order=20,
    ),
    ReportSection(
        name="gaussian.joint",
        version=1,
        summary="Information between positions and its decay, and what follows the most frequent tokens.",
        section="gausslens_gaussian.figures.joint:joint",
        question="How much do positions tell of each other?",
        analyses=("gaussian.joint",),
        order=22,
    ),
    ReportSection(
        name="gaussian.propagate",
        version=1,
        summary="How well a Gaussian pushed through W_V and attention predicts what is measured.",
        section="gausslens_gaussian.figures.propagate:propagate",
        question="Does a Gaussian pushed through attention predict it?",
        analyses=("gaussian.propagate",),
        order=24,
    ),
    ReportSection(
        name="gaussian.collapse",
        version=1,
        summary="Entropy deficit, spread of tokens and rate of collapse, beside those of other variants.",
        section="gausslens_gaussian.figures.collapse:collapse",
        question="Do tokens become alike?",
        analyses=("gaussian.collapse",),
        order=26,
    ),
    ReportSection(
        name="gaussian.distances",
        version=2,
        summary="How far fitted Gaussians are apart in scale, shape and both, layer by layer, beside equal ones.",
        section="gausslens_gaussian.figures.distances:distances",
        question="How far apart are the variants' Gaussians?",
        analyses=("gaussian.compare", "gaussian.between-layers"),
        order=28,
    ),
]


@hookimpl
def analyses() -> list[Analysis]:
    """What Gaussian fitting computes."""
    return [MOMENTS, JOINT, PROPAGATE, COLLAPSE, COMPARE, BETWEEN_LAYERS]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return SECTIONS
