"""What a folder holds: every file read as it is, with what is wrong in it noted."""
