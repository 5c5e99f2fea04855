"""The mathematics of re-initialisation, on tensors alone: noise, shapes, and what a tensor keeps of another."""
