"""evaluator/fit"""
