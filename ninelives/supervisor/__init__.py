"""The small parent process of a server. Owns: the listening socket, starting and restarting the server process, and one
idle spare of it. Refuses to know: stores, dialects, agents, tools and settings. It imports the standard library only,
so that little can break in it; tests/supervisor counts its modules."""
