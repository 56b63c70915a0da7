"""From bytes to lines: which of them may matter, who wrote each, and when."""
