"""The benchmark: `make bench`, or `python -m lab.bench --help`. It measures what Ninelives adds to an upstream. The
upstream itself (`direct`) and the cheapest proxy without a store (`floor`) are measured in the same run. Nothing here
imports the server: it is measured from outside, as its clients see it.

Start reading at program.py. One run goes through this folder from top to bottom:

    cli.py            flags, exit codes, files
    program.py        chooses loads and targets, measures them in turn, asks for a verdict

  what is measured
    targets.py        how each target is started: direct, floor, ninelives-*, before-*, control, peers
    floor.py          the proxy without a store; with --burn-us it is the negative control
    machine.py        starts processes, pins them to cores, ends them

  what is asked
    loads.py          the list of loads, long and quick
    client.py         the loads tiny, first, flood, paced and control, by the load generator
    readers.py        the load readers, by Python clients; so are the next three
    length.py         the load length
    history.py        the load history
    idle.py           the load idle
    wire.py           HTTP for those that need one connection at a time

  the load generator: a client and an upstream, so that both ends of a stream share one clock
    generator.py      chooses between the two, and compiles the first
    load.c            in C, with load_client.h, load_upstream.h and load_loop.h
    slow.py           in Python, for machines without a C compiler, with slow_client.py and slow_upstream.py

  what comes of it
    figures.py        Figure (one load on one target) and Report (one run; also the JSON file)
    cost.py           CPU time, memory and wake-ups of a process tree, from /proc
    counters.py       instructions of a process tree, where the processor counts them
    judge.py          each promise about speed, with its bound and a verdict
    compare.py        which costs rose since an earlier report
    tables.py         text tables; plots.py and svg.py: charts; page.py: the folder docs/performance"""
