"""The mathematics: plain functions on maps of attention [..., query, key], usable with no host."""
