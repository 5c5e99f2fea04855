"""JSON Schemas of run files and parameters, and the specification of the store."""
