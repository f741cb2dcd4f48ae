"""The tools of every room: errors for users, files and documents, text, JSON, random streams, compiled functions."""
