"""Approximations of attention: exact where a closed form exists, beside an oracle of equal budget, judged by loss."""
