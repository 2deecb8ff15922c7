"""The benchmark: train without each domain in turn, evaluate every method on it, store what was measured."""
