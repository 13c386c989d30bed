"""Training in reduced coordinates, and the spectra along the way."""
