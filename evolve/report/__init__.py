"""`evolve report`: what a team needs to know before it adopts a program, in ten dimensions.

Every figure is computed when the report is made, by the functions of the other commands. The command that repeats it
is named with it.
"""
