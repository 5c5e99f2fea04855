"""Mathematics on arrays, usable with no model and no host: each formula with its source. Public to every plugin."""
