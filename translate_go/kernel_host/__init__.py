"""The newest host: it prices a deployment, its memory and its transfers, by a kernel.Kernel. Start at `files.py`."""
