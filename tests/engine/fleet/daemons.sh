#!/bin/sh
# Start the daemons of a node of Slurm; the first one also has the controller.
install -D -m 400 -o munge -g munge /mnt/project/munge.key /etc/munge/munge.key
install -D /mnt/project/slurm.conf /etc/slurm/slurm.conf
mkdir -p /run/munge /var/spool/slurm-state /var/spool/slurmd && chown munge /run/munge
su -s /bin/sh munge -c munged
[ "$(hostname)" != node0 ] || slurmctld
exec slurmd -D
