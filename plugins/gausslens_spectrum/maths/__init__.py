"""The mathematics of surgery, on arrays alone: singular values, products of a head, distances between predictions."""
