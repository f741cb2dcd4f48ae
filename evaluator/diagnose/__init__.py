"""evaluator/diagnose"""
