"""Steps of a plan as tasks: computed here, by many processes at once, or a share of them; each once, whoever asks."""
