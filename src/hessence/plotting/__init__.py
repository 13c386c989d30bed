"""Pictures, imported by the ``plot`` methods of results; they need matplotlib."""
