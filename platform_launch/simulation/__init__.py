"""Several nodes of a job on this machine.

nodes          starts the launchers, and shows their lines and how the job ended
drill whether a script survives faults: injects them one after another
drill_start    one start of the job: what its log and its checkpoint folder show meanwhile
drill_judge    what was seen → a result per fault; pure"""
