"""`sourceward demo`: rotated handwritten digits, in a minute and without a download."""
