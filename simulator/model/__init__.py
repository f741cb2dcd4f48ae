"""A model, from the terms of its config.json to what determines its cost, and what no field counts."""
