"""One serving experiment: its deployment, load and measurements, as values and read from a file."""
