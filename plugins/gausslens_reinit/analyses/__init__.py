"""What a variant keeps of the model's own matrices."""
