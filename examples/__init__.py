"""Run files to start from: `gausslens example` lists and copies them."""
