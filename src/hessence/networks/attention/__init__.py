"""A single attention layer."""
