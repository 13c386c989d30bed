"""The papers' figures: every file here that holds an ``EXPERIMENT`` is found by itself."""
