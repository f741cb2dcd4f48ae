"""simulator/experiment"""
