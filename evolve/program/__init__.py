"""evolve/program"""
