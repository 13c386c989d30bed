"""Networks made of inner products: one input or output for each."""
