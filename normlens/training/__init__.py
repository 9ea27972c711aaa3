"""Training small decoders and removing the scales of their norms, by recipes that are data."""
