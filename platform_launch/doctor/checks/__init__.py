"""One file per topic: each check reads facts and yields findings, and does nothing else."""
