"""Commands that make a server part of this machine: the service and the completion of a shell."""
