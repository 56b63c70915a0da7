"""Makes the verdict of one chosen event: where it happened, what to do, whether to retry."""
