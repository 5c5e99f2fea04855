"""What was found, as it stands first on the page: the ladder, every number by head, and what the words mean."""
