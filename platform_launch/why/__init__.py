"""Logs of a failed launch → the root cause over all nodes, what it means and what to do.

It never claims more than its evidence: what matches no signature is reported as "no known cause; this line
may show it: …". Nothing here imports torch, and the signatures are read only when a log is.

From a log to the answer, each package uses only those above it:

lines bytes → lines, each with its writer and its time; of a big log only the relevant parts
messages    what one message means: signatures, exceptions by their frames, the advice in the message itself
reading     one log → what happened in it, without what its processes got over
answer      one chosen event → the verdict: where it happened, what to do, whether to retry
rank        all that could be the root cause → the highest claim, by one table of weights

``explaining`` runs all of them. Beside them: sources (which files are logs), note (remarks as ids and
values), hang_records and dump_reading (what the hang monitor and torch's flight recorder wrote), opinion
(what a language model makes of it, if asked).
"""
