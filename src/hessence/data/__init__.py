"""Data and losses: moments, losses, and objectives made of both."""
