"""The routes behind the web page. Owns: what the page needs beside the API: runs over time, the list of runs, entries,
what a model was sent, Markdown. Refuses to know: what the page looks like."""
