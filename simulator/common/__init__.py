"""What every room needs: errors for users, files and documents, text, JSON, random streams, compiled functions."""
