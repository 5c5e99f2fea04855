"""What this plugin offers."""

from __future__ import annotations

from gausslens import Loader, hookimpl

api_version = 1

NANOGPT = Loader(
    name="nanogpt",
    version=1,
    summary="a checkpoint of nanoGPT: a directory with ckpt.pt, or a .pt file",
    parameters="gausslens_nanogpt.parameters:NanoGPT",
    claims="gausslens_nanogpt.loader:claims",
    open="gausslens_nanogpt.loader:open_nanogpt",
    rank=40,
)


@hookimpl
def loaders() -> list[Loader]:
    """The one loader."""
    return [NANOGPT]
