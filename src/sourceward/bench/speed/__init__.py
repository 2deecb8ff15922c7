"""`sourceward bench speed`: the cost of adaptation beside the backbone, and whether speed changes results."""
