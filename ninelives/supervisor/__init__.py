"""The small parent process of a server. Owns: the listening socket, starting and restarting the server process, one
idle spare of it, and what outlives a server: sockets of clients and of model calls. Refuses to know: stores, dialects,
agents, tools and settings. It imports the standard library only, so that little can break in it.

Two kinds of process use this room, and talk over a control line:

- the supervisor: process.py, with loop.py, held.py and relay.py. tests/supervisor counts its modules and its lines.
- a server: supervised.py, with custody.py for clients, calls.py for model calls, kernel.py, and reload.py.
- both: line.py and plan.py."""
