"""What several figures share: networks and their training, language models, text, statistics."""
