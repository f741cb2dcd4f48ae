"""evolve/program/steps"""
