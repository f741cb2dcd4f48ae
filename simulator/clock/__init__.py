"""How an instance keeps time: what happens at every step, whatever a step lasts."""
