"""What the parts of ProcGuard exchange: the agents' protocol, the API's JSON, rank assignment, refusals.
Pure.
"""
