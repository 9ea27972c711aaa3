"""The explorer's pages and what they share. No mathematics and no torch."""
