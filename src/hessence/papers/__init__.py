"""The papers: their figures and claims, computed again, and the demo."""
