"""Mathematics on arrays, usable with no host."""
