"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Engine, Loader, PromptSource, hookimpl


@hookimpl
def loaders() -> list[Loader]:
    """How files of maps are opened."""
    return [
        Loader(
            name="matrices",
            version=1,
            summary="attention matrices in .npy, .npz, .safetensors or HDF5 files, or a directory of them",
            parameters="gausslens_matrices.parameters:MatricesParameters",
            claims="gausslens_matrices.stored_arrays:claims",
            open="gausslens_matrices.model:open_matrices",
            rank=30,
        )
    ]


@hookimpl
def captures() -> list[Engine]:
    """What hands them out."""
    return [
        Engine(
            name="matrices",
            version=1,
            summary="hands out maps, queries, keys and values as they were saved",
            engine="gausslens_matrices.model:MatricesEngine",
            serves=("matrices",),
        )
    ]


@hookimpl
def prompt_sources() -> list[PromptSource]:
    """What they were made of: a prompt for each map."""
    return [
        PromptSource(
            name="matrices",
            version=1,
            summary="one prompt for each saved map; brings the model that holds them",
            parameters="gausslens_matrices.parameters:MapsParameters",
            prompts="gausslens_matrices.model:prompts",
            model="gausslens_matrices.parameters:model_block",
        )
    ]
