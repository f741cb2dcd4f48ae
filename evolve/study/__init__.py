"""evolve/study"""
