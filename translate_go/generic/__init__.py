"""A backend for every deployment: Go that computes facts and curves from the host's configuration of model and GPU."""
