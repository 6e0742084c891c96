"""Pictures of the pages, as SVG that needs no script, no font of its own and no other host.

Each picture has its own card and both sets of colours: it follows the page where the browser says which set the page
has, and can be read on any page elsewhere. ``scripts.docs.generate`` writes them and says which are stale.

- ``drawing``: colours, text, boxes and arrows of all pictures.
- ``journey``: a job's way, and a lease that ends.
- ``timelines``: the calls and runs of Throttle, Debounce and Latest; tests play the same calls.
- ``terminal``: what ``rq-core top`` prints of an example's queues, with its colours.
- ``charts``: rq-core beside other queues, from the figures of the last full run.
- ``board``: the dashboard for Grafana: its own panels, drawn with recorded values.
- ``record``: records those values from a Prometheus, by hand.
- ``gallery``: all drawn pictures, by file name.
- ``shots``: screenshots of the web page, taken by hand with ``scripts/site --shots``.
"""
