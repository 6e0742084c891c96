"""Shows the graph of a flow on the page of the flow's job.

- ``layout``: computes where nodes and lines are drawn; no I/O.
- ``flow_rows``: reads the nodes of a flow, and makes their part of the page's document.
"""
