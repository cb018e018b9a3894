"""What is done on a cluster that stands: jobs, their logs, the dashboard, and the nodes watched meanwhile."""
