"""What crosses a border of ProcGuard: the agents' wire, the API's JSON, ranks by rule, refusals. Pure."""
