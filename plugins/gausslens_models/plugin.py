"""The wiring: hook implementations and nothing else."""
