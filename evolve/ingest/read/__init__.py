"""The files of one experiment's folder as values; anything wrong in them becomes a finding or a count.

Start with `sources`, which finds the files of a folder. Each other module reads one kind of file, on top of `files`
(JSON, YAML, JSON Lines) and `values` (a checked mapping, findings).
"""
