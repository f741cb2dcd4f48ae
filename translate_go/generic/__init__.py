"""A backend for every deployment: Go that computes facts and curves from what the host knows of model and GPU."""
