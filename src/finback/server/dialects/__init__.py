"""One file a dialect: JSON in, JSON out, events in, bytes of a stream out. Nothing here runs anything."""
