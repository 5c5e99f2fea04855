"""Attention sinks: how much of each head's attention rests on the first token."""
