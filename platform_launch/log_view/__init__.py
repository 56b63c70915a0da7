"""Shows the logs of all nodes in one, by time, with levels and the root cause marked.

    entry     a line's time and level                 merge   whole logs → entries in order
    selection which lines to show                     follow  growing logs → entries as they arrive
    launch    the logs of one launch, their events    view    an entry as text

Memory is constant, whatever the logs' size. The launcher's own lines are known from the event files beside
them.
"""
