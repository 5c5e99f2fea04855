"""The store: immutable parts, run manifests, a derived index."""
