"""Data frames of runs, programs, predictions and validations.

Imports pandas, so only code that makes a frame may import this package.
"""
