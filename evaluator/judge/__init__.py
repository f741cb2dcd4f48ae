"""evaluator/judge"""
