"""What an author of plugins meets: hooks, descriptors, and what passes between the host and a plugin."""
