"""evolve/program/fit"""
