"""Models from the Hugging Face hub: names, the cache that other tools share, and downloads that are checked."""
