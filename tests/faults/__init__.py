"""Known bugs, planted one at a time; each must turn a test red."""
