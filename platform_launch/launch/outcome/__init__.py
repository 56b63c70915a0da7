"""The outcome of a run: from the exit codes of its processes to the last lines and the job's exit code.

exit_code     the exit code of a node's processes, and of the node
node_ending   how an attempt ended on this node, as reported to the other nodes
result        how the run ended on this node, and the events that report it
conclusion    the root cause of a failure, the record, and the last lines
"""
