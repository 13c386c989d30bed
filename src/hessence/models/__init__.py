"""Any PyTorch model: products with its Hessian, its spectrum, its training."""
