"""The analyses of this plugin: raw capture, loss, generation, attention and embeddings."""
