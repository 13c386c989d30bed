"""ReLU networks of any input, hidden and output size, and of any depth."""
