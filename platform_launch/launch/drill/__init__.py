"""Does a script survive what ends jobs? Faults on simulated nodes, and what the script makes of them.

start    one start of the job, what its log and its checkpoint folder show meanwhile
faults   the faults, and the starts that each of them takes
judge    what was seen → a result per fault; pure
"""
