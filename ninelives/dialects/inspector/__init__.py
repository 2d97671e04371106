"""What the web page shows of a run. Owns: a run over time, a line of the list of runs, its entries, and Markdown as a
tree. Refuses to know: engines and HTTP."""
