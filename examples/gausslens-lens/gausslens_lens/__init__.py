"""What a model's streams say on the way, and which of its parts an answer goes through."""
