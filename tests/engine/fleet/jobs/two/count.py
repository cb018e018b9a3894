"""Ask each node of the job's Ray for its name, and write the names down."""

import json
import socket
import sys
import time

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

ray.init(log_to_driver=False)
while len(nodes := [node["NodeID"] for node in ray.nodes() if node["Alive"]]) < int(sys.argv[1]):
    time.sleep(1)
ask = ray.remote(num_cpus=0)(lambda: socket.gethostname())
names = sorted(ray.get([ask.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]))
with open(sys.argv[2], "w") as file:
    json.dump(names, file)
print("nodes", *names, flush=True)
