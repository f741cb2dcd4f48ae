"""INTEGRATION.md: how an emitted backend is registered in the host and run there."""
