"""Measures slices of time with `rnic perf`, a client and a server on this host."""
import json
import os
import re
import statistics
import subprocess
import sys

# A client that takes longer than this (in seconds) hangs: a slice lasts less than a second.
PATIENCE = 60

# The load from which other programs disturb a run.
BUSY = 1.0

SCRIPT = os.path.basename(sys.argv[0])


def warn_if_busy():
    if os.getloadavg()[0] > BUSY:
        print(f"{SCRIPT}: the machine is busy (load {os.getloadavg()[0]:.1f}): see CONTRIBUTING.md, Speed", file=sys.stderr)


def progress(number, rounds):
    if sys.stderr.isatty():
        print(f"\rround {number} of {rounds} ", end="", file=sys.stderr, flush=True)


def pinned(command, processors, nth):
    """The command on the nth processor, if there are two: else the scheduler may place both sides on one."""
    if len(processors) < 2:
        return command
    return ["taskset", "--cpu-list", str(processors[nth]), *command]


def measure(side, options, milliseconds, processors, both=()):
    """The results of one slice: {figure: value}. A server of its own serves each, so that no other one wakes up. `side`: the
    program, and the daemon's socket or "off". `both`: options of the server too."""
    program, socket = side
    environment = {**os.environ, "RNIC_DAEMON": socket}
    server = subprocess.Popen(
        pinned([program, "perf", "server", "--once", "--control-port", "0", *both], processors, 1),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        line = server.stdout.readline()
        found = re.search(r"server at (\S+), control port (\d+)", line)
        if not found:
            sys.exit(f"{SCRIPT}: {program} perf server says {line!r}")
        address, port = found.groups()
        client = [program, "perf", "client", address, "--control-port", port, "--no-verify", "--json",
                  "--duration", f"{milliseconds}ms", *both, *options]
        try:
            done = subprocess.run(pinned(client, processors, 0), capture_output=True, text=True, timeout=PATIENCE,
                                  env=environment)
        except subprocess.TimeoutExpired:
            sys.exit(f"{SCRIPT}: {' '.join(client)}: no end after {PATIENCE} s")
        if done.returncode != 0:
            sys.exit(f"{SCRIPT}: {' '.join(client)}: {done.stderr.strip()}")
        result = json.loads(done.stdout)["results"][0]
    finally:
        server.kill()
        server.wait()
    if "percentile_99_usec" in result:
        return {"p50": result["t_typical_usec"], "p99": result["percentile_99_usec"]}
    if result["size"] < 1024:
        return {"": result["msg_rate_mpps"]}
    return {"": result["iterations"] * result["size"] * 8e-9 / result["seconds"]}


def spread(values):
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:7.2f} ({low:.2f}-{high:.2f})"
