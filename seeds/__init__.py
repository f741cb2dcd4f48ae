"""Program texts to start a search from, one latency model per file.
They are read as text and never imported or executed."""
