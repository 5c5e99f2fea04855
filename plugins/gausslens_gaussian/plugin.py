"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Analysis, ReportSection, hookimpl

MOMENTS = Analysis(
    name="gaussian.moments",
    version=1,
    shape="stream",
    summary="Mean, covariance, spectrum, entropy and length of what flows through a site, for each layer and head.",
    parameters="gausslens_gaussian.parameters:MomentsParameters",
    analysis="gausslens_gaussian.moments:Moments",
    exchangeable=("head", "kv_head"),
    estimate="gausslens_gaussian.moments:estimate",
)
COMPARE = Analysis(
    name="gaussian.compare",
    version=1,
    shape="derived",
    scope="run",
    summary="Kullback-Leibler divergence and Frechet distance between the Gaussians of two variants, layer by layer.",
    parameters="gausslens_gaussian.parameters:CompareParameters",
    analysis="gausslens_gaussian.compare:Compare",
)
SECTION = ReportSection(
    name="gaussian.moments",
    version=1,
    summary="Spread, effective rank, anisotropy and entropy by layer, and the spectra of the covariances.",
    section="gausslens_gaussian.section:moments",
    analyses=("gaussian.moments",),
    order=20,
)


@hookimpl
def analyses() -> list[Analysis]:
    """What Gaussian fitting computes."""
    return [MOMENTS, COMPARE]


@hookimpl
def report_sections() -> list[ReportSection]:
    """What it shows."""
    return [SECTION]
