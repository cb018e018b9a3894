"""The first files of somebody's own: a target for their machine, a job, what an editor needs to check both."""
