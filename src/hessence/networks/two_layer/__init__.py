"""Any two-layer network: proved brackets of all eigenvalues, and exact counts of them."""
