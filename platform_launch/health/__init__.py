"""The health of a job's GPUs and ports: readings → findings → the grade of a node."""
