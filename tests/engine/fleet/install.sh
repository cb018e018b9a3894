#!/bin/sh
# Install Slurm in an image of Debian 12, as root.
set -e
apt="apt-get -qq -y -o Acquire::https::CAInfo=/run/ca.crt"
cp /mnt/project/debian.list /etc/apt/sources.list.d/
$apt update
DEBIAN_FRONTEND=noninteractive $apt install --no-install-recommends slurmctld slurmd slurm-client munge
