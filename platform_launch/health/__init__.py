"""Whether the GPUs and ports of a job are well: readings → findings → what may be done with the node."""
