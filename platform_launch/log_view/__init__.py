"""Reading logs as a person: those of all nodes in one, by time, with levels, and the root cause marked.

    entry     a line's time and level                 merge   whole logs → entries in order
    selection which lines are wanted                  follow  growing logs → entries as they come
    launch    the logs of one launch, their events    view    an entry as a person sees it

Constant memory, whatever the logs' size. What the launcher said is known from the event files beside them.
"""
