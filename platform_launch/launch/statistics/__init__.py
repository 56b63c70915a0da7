"""The statistics of a run: what it costs (``cost``), how it is going (``run_report``), and who gets that."""
