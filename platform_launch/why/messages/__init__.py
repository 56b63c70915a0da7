"""What single messages mean: known failures, exceptions of Python's, rules for those that nobody knows."""
