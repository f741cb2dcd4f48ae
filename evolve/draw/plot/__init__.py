"""Pictures of runs and programs for papers and pages, drawn with matplotlib, which the extra `view` brings."""
