"""What users hold: spectra, estimates, certificates, and the operators they belong to."""
