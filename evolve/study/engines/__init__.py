"""evolve/study/engines"""
