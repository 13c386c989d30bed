"""PyTorch models as both recognition and products see them: layers, weights, losses."""
