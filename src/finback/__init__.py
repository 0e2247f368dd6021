"""finback."""
