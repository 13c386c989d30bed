"""Any PyTorch model: Hessian and Gauss–Newton products, spectra, a monitor for training."""
