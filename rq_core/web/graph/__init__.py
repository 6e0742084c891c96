"""The graph of a flow on the page of the flow's job.

- ``layout``: where the nodes and the lines of a graph are drawn; no I/O.
- ``flow_rows``: reads the nodes of a flow, and makes the part of the page's document about them.
"""
