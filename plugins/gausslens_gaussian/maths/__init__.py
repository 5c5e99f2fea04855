"""Pure mathematics of Gaussians, on arrays: usable with no host."""
