"""evolve/propose"""
