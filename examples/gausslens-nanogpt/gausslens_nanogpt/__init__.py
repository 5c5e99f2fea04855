"""Checkpoints of nanoGPT, opened by gausslens."""
