"""The life of one node of a job; ``job`` shows it on one page.

This joins two packages that do not know each other: ``supervise`` runs the processes of a node, and
``rendezvous`` connects the nodes of a job and lets them agree on the outcome.

    job                                the page: detect, plan, rendezvous, train, agree, finish
    stages                             what is announced before the start
    alone, together, attempt           the attempts of a single node, and of a node among others
    training_command                   what an attempt runs, and what its monitors need to know
    watched_training                   one start of the processes
    hang_watch, pace_watch, profiling  monitors of the processes; peers asks the other nodes
    health_watch, process_watch        monitors of the devices; of memory, GPU use and CPUs
    saves                              checkpoints, and what a stop left of them
    exit_code, node_ending             the outcome: of the processes, and as the other nodes learn it
    conclusion                         the end: result, root cause, record, last lines
    cost, run_report, metrics          the statistics: where the time went, for inspect, TrainJobs, Prometheus
"""
