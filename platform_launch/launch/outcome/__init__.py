"""The outcome of a run: from the exit codes of its processes to the last lines and the job's exit code.

exit_code     what the processes of a node ended with, and what the node exits with
node_ending   how an attempt ended on this node, as the other nodes are told
result        how the run ended on this node, and how that is reported
conclusion    the root cause of a failure, the record, and the last lines
"""
