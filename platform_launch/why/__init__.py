"""Logs of a failed launch → the root cause over all nodes, what it means and what to do.

It never claims more than its evidence: what no signature knows is "no known cause; this line may tell it: …".
Nothing here imports torch, and the signatures are read only when a log is.

From a log to the answer, each package below the next:

note                        what an answer notes besides, by id and values
lines                       bytes and lines
    opening                 a file's bytes, of a compressed one too
    sieve, broken_lines     of a big file the parts that may matter, found by grep
    scan, vocabulary        of these the lines that may matter
    unwrap                  lines that hold others
    host_names              which words name no machine
    line, prefixes, clock   a line taken apart: who wrote it, when, what it says; location_patterns
    literals                makes hundreds of patterns fast
messages                    what a message means
    signatures              known failures, from known/*.yaml
    exceptions, tracebacks  exceptions, put together from their lines
    frames, own_advice      what an exception's frames do, and what its message itself advises
    exception_rules         what to make of one that no signature knows
sources                     which files are logs, and of which node
reading                     one log
    reader                  reads it, and asks of each line:
        assembly            ... is it part of a traceback?
        endings, steps      ... does a launcher or a scheduler say how a process ended? batch, pods
        own_lines           ... is it this launcher's own?
        collectives         ... does it tell how far a rank is?
        homes, stated_host  ... does it tell on which host a rank, or all of it, runs?
        error_lines         ... does it say an error at all?
        mentions, quoted    ... or does it only speak of one?
        surroundings        ... or do the lines around it say so? code: a program's text
    log_events, events      what one log tells; claims, attempts: which of it its processes got over
answer                      verdict: the answer; place, fingerprint: what is in it; retry: if to try again
rank                        claims: all that could be the root cause, with its marks; weights: what a mark is
                            worth; judge: the verdict of the highest claim; beside: what is said beside it
hang_records                what the hang monitor left beside the logs
explaining                  all of it: from logs to the verdict
opinion                     what a language model makes of it, if the user asks
"""
