"""Prompt sources, and prompts into tokens."""
