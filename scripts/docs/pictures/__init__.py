"""Pictures of the pages, as SVG that needs no script, no font of its own and no other host.

Each picture has a background of its own (a card), a light set of colours and a dark set. It uses the set that the
browser reports, and can be read on any page. ``scripts.docs.generate`` writes the pictures and reports outdated ones.

- ``drawing``: colours, text, boxes and arrows of all pictures.
- ``journey``: a job's way, and a lease that ends.
- ``timelines``: the calls and runs of Throttle, Debounce and Latest; tests play the same calls.
- ``terminal``: what ``rq-core top`` prints of an example's queues, with its colours.
- ``charts``: rq-core beside other queues, from the figures of the last full run.
- ``board``: the dashboard for Grafana: its own panels, drawn with recorded values.
- ``record``: records those values from a Prometheus, by hand.
- ``gallery``: the pictures of these modules, by file name.
- ``shots``: screenshots of the web page, taken by hand with ``scripts/site --shots``.
"""
