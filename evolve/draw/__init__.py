"""Pictures of runs and programs (`plot`), and a page that follows runs in a browser (`view`)."""
