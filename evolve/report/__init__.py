"""evolve/report"""
