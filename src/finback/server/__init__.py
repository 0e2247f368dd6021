"""The HTTP server: the dialects that tools speak, translated to requests of the engine and back."""
