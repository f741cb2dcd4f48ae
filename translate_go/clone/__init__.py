"""The emitted Go in a clone of the host: edits of its files found by structure, and a branch that holds them."""
